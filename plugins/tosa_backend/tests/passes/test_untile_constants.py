"""Constants that repeat their elements, stored without the repetitions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from delegraph_tosa.backend import compile_program
from delegraph_tosa.evaluate import evaluate
from delegraph_tosa.ir import operators as tosa
from delegraph_tosa.ir.graph import Folded, Graph, Value
from delegraph_tosa.passes import run_passes
from delegraph_tosa.spec import TosaSpec

from ..support.drafts import FP, Draft, assert_well_formed, sizes

NPU = replace(FP, devices=frozenset({"u85"}))


def repeated(d: Draft, shape: tuple[int, ...], times: tuple[int, ...], *seen: int) -> Value:
    """A constant, tiled and perhaps seen in another shape, as lowering folds it."""
    d.op(tosa.TILE, d.constant(*shape), sizes(times))
    value = d.reshape(d.operators[-1].outputs[0], *seen) if seen else d.operators[-1].outputs[0]
    for operator in d.operators[-1 - bool(seen) :]:
        operator.outputs[0].producer, operator.outputs[0].constant = None, Folded(operator)
    del d.operators[-1 - bool(seen) :]
    return value


def constant_of(graph: Graph) -> tuple[int, ...]:
    """The shape of the constant of the one operator."""
    (operator,) = graph.operators
    return next(v.shape for v in operator.inputs[:2] if v.constant is not None)


def stored(d: Draft, kind: type, *operands: Value, spec: TosaSpec = FP) -> tuple[int, ...]:
    """The shape of the constant that the passes leave, of a graph that computes the same."""
    given = d.graph(d.op(kind, *operands, *([d.no_shift] if kind is tosa.MUL else [])))
    result = run_passes(given, spec)
    if not spec.devices:
        assert_well_formed(result, spec)
    arrays = [d.random.standard_normal(v.shape).astype(np.float32) for v in d.inputs]
    for old, new in zip(evaluate(given, arrays), evaluate(result, arrays), strict=True):
        np.testing.assert_array_equal(new, old)
    return constant_of(result)


@pytest.mark.parametrize("kind", [tosa.MUL, tosa.SUB, tosa.MAXIMUM])
@pytest.mark.parametrize("is_first", [False, True])
def test_the_other_operand_says_how_often_a_constant_is_repeated(kind: type, is_first: bool) -> None:
    d = Draft()
    pair = d.input(1, 4, 6, 5), repeated(d, (4, 1, 1), (1, 6, 5), 1, 4, 6, 5)
    assert stored(d, kind, *(pair[::-1] if is_first else pair)) == (1, 4, 1, 1)


def test_along_other_axes_the_constant_goes_on_repeating() -> None:
    d = Draft()
    assert stored(d, tosa.MUL, d.input(1, 4, 6, 1), repeated(d, (4, 1, 1), (1, 6, 5), 1, 4, 6, 5)) == (1, 4, 1, 5)


def test_what_only_the_constant_repeats_stays() -> None:
    d = Draft()
    assert stored(d, tosa.ADD, d.input(4, 1), repeated(d, (4, 1), (1, 6))) == (4, 6)
    d = Draft()
    assert stored(d, tosa.ADD, d.input(4, 6), repeated(d, (2, 1), (2, 6))) == (4, 6)
    d = Draft()
    assert stored(d, tosa.ADD, d.input(24), repeated(d, (4, 1), (1, 6), 24)) == (24,)
    d = Draft()
    assert stored(d, tosa.ADD, d.input(4, 6), repeated(d, (4, 1), (1, 6)), spec=NPU) == (4, 6)


class Decay(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Parameter(torch.linspace(-1, 1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x * (-torch.exp(self.a))[:, None, None].expand(-1, 6, 5))


def test_a_parameter_that_is_expanded_is_stored_as_it_is() -> None:
    graph = compile_program(torch.export.export(Decay().eval(), (torch.ones(1, 4, 6, 5),)), FP)
    product = next(op for op in graph.operators if isinstance(op, tosa.MUL))
    assert product.inputs[1].shape == (1, 4, 1, 1)
