"""The pass that joins the query, key and value layers of an attention into one layer."""

from __future__ import annotations

import numpy as np
import pytest
from delegraph_tosa.evaluate import materialize
from delegraph_tosa.ir import operators as tosa
from delegraph_tosa.ir.graph import Graph, Operator, Value
from delegraph_tosa.ir.types import DType
from delegraph_tosa.passes import run_passes, sources_of
from delegraph_tosa.serialize import TosaFile, read
from delegraph_tosa.spec import TosaSpec

from ..support.drafts import Draft, count_operators, optimize_and_compare

HEADS_FIRST = (0, 2, 1, 3)


def linear_heads(
    d: Draft,
    x: Value,
    number: int = 3,
    width: int = 4,
    perms: tuple[int, ...] = HEADS_FIRST,
) -> Value:
    """Return a linear layer of x [N,L,C], split into heads [N,number,L,width]."""
    batch, rows, _ = x.shape
    return d.transpose(
        d.reshape(d.linear(x, number * width), batch, rows, number, width), *perms
    )


def attention(d: Draft, x: Value) -> Value:
    """Return the attention of x [N,L,C] with three heads of width 4: [N*3,L,4]."""
    query, key, value = (linear_heads(d, x) for _ in range(3))
    flat = (x.shape[0] * 3, x.shape[1], 4)
    query = d.mul(query, d.constant(1, 1, 1, 1))
    keys = d.reshape(d.transpose(key, 0, 1, 3, 2), flat[0], flat[2], flat[1])
    return d.matmul(
        d.relu(d.matmul(d.reshape(query, *flat), keys)), d.reshape(value, *flat)
    )


def only_operator(graph: Graph, name: str) -> Operator:
    (found,) = [operator for operator in graph.operators if operator.name == name]
    return found


@pytest.mark.parametrize("batch", [1, 2])
def test_query_key_and_value_become_one_layer(batch):
    draft = Draft()
    result = optimize_and_compare(draft, attention(draft, draft.input(batch, 5, 7)))
    operators = count_operators(result)
    assert operators["CONV2D"] == 1
    assert operators["SLICE"] == 3
    assert operators["TRANSPOSE"] == 2  # one for all heads, one more for keys
    assert operators["RESHAPE"] == (2 if batch == 1 else 5)


def test_attention_for_tosa_1_1_needs_only_one_transpose():
    """TOSA 1.1 multiplies by transposed keys with MATMUL_T."""
    draft = Draft()
    optimized = optimize_and_compare(
        draft,
        attention(draft, draft.input(1, 5, 7)),
        spec=TosaSpec.parse("TOSA-1.1+FP"),
    )
    assert count_operators(optimized)["TRANSPOSE"] == 1


@pytest.mark.parametrize("name", ["CONV2D", "RESHAPE", "TRANSPOSE"])
def test_joined_operators_name_the_sources_of_all(name):
    draft = Draft()
    x = draft.input(1, 5, 7)

    result = optimize_and_compare(
        draft, linear_heads(draft, x), linear_heads(draft, x, 2)
    )

    def works_on_heads(operator):
        return operator.name == name and operator.outputs[0].shape[-1] != 7

    given_sources = {op.source for op in draft.operators if works_on_heads(op)}
    joined = next(op for op in result.operators if works_on_heads(op))
    assert set(sources_of(joined.source)) <= given_sources
    assert len(sources_of(joined.source)) > 1


def test_slices_of_a_joined_layer_name_separate_sources():
    draft = Draft()
    x = draft.input(1, 5, 7)

    result = optimize_and_compare(
        draft, linear_heads(draft, x), linear_heads(draft, x, 2)
    )

    first, second = [op for op in result.operators if op.name == "SLICE"]
    assert set(sources_of(first.source)).isdisjoint(sources_of(second.source))


def test_grouped_heads_without_bias_are_joined():
    draft = Draft()
    x = draft.input(2, 5, 7)
    weight = draft.constant(8, 1, 1, 7)
    image = draft.reshape(x, 2, 1, 5, 7)
    plain = draft.reshape(
        draft.bare(image, tosa.CONV2D, weight, draft.zero()), 2, 5, 2, 4
    )
    result = optimize_and_compare(
        draft,
        linear_heads(draft, x, 6),
        draft.transpose(plain, *HEADS_FIRST),
        linear_heads(draft, x, 2),
    )
    assert (
        count_operators(result)["TRANSPOSE"] == count_operators(result)["CONV2D"] == 1
    )
    assert only_operator(result, "CONV2D").inputs[1].shape == (40, 1, 1, 7)


def test_keys_and_values_without_queries_stay_two_layers():
    """Keys need a transposition of their own, so joining the two layers saves nothing."""
    draft = Draft()
    x = draft.input(1, 5, 7)
    key = draft.reshape(draft.transpose(linear_heads(draft, x), 0, 1, 3, 2), 3, 4, 5)
    optimized = optimize_and_compare(draft, key, linear_heads(draft, x))
    assert count_operators(optimized)["CONV2D"] == 2


DIFFERENT = {
    "width": {"width": 2},
    "order": {"perms": (2, 0, 1, 3)},
}


@pytest.mark.parametrize("change", DIFFERENT.values(), ids=DIFFERENT)
def test_heads_that_differ_stay_apart(change):
    draft = Draft()
    x = draft.input(1, 5, 7)
    optimized = optimize_and_compare(
        draft, linear_heads(draft, x), linear_heads(draft, x, **change)
    )
    assert count_operators(optimized)["CONV2D"] == 2


def test_layers_of_different_values_stay_apart():
    draft = Draft()
    optimized = optimize_and_compare(
        draft,
        linear_heads(draft, draft.input(1, 5, 7)),
        linear_heads(draft, draft.input(1, 5, 7)),
    )
    assert count_operators(optimized)["CONV2D"] == 2


def test_layers_with_another_use_stay_apart():
    draft = Draft()
    x = draft.input(1, 5, 7)
    y = draft.linear(x, 12)
    moved = draft.transpose(draft.reshape(y, 1, 5, 3, 4), *HEADS_FIRST)
    optimized = optimize_and_compare(
        draft, linear_heads(draft, x), moved, draft.relu(y)
    )
    assert count_operators(optimized)["CONV2D"] == 2


def test_layers_whose_weight_has_another_use_stay_apart():
    draft = Draft()
    x = draft.input(1, 5, 7)
    weight = draft.constant(12, 1, 1, 7)
    y = draft.reshape(
        draft.bare(draft.reshape(x, 1, 1, 5, 7), tosa.CONV2D, weight, draft.zero()),
        1,
        5,
        3,
        4,
    )
    other = draft.bare(draft.input(1, 1, 2, 7), tosa.CONV2D, weight, draft.zero())
    optimized = optimize_and_compare(
        draft, linear_heads(draft, x), draft.transpose(y, *HEADS_FIRST), other
    )
    assert count_operators(optimized)["CONV2D"] == 3


def test_layers_of_one_row_stay_apart():
    """One row needs no transposition, so joining the layers saves nothing."""
    draft = Draft()
    x = draft.input(1, 1, 7)
    optimized = optimize_and_compare(
        draft, linear_heads(draft, x), linear_heads(draft, x)
    )
    assert count_operators(optimized) == {"CONV2D": 2, "RESHAPE": 3}


@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16, DType.FP16], ids=str)
def test_joined_weights_lie_one_after_another_in_the_file(dtype):
    draft = Draft(dtype=dtype)
    x = draft.input(1, 5, 7)
    given = draft.graph(linear_heads(draft, x), linear_heads(draft, x, 2))
    spec = TosaSpec.parse("TOSA-1.0+FP+bf16")
    layers = [op for op in given.operators if op.name == "CONV2D"]
    result = read(TosaFile(run_passes(given, spec), spec).join())
    for position in (1, 2):
        joined = materialize(only_operator(result, "CONV2D").inputs[position])
        np.testing.assert_array_equal(
            joined, np.concatenate([materialize(op.inputs[position]) for op in layers])
        )


def test_gains_before_joined_layers_are_not_folded():
    """Each folded weight would have to be computed when the file is written."""
    draft = Draft()
    x = draft.mul(
        draft.relu(draft.linear(draft.input(1, 5, 7), 6)), draft.constant(1, 1, 6)
    )
    operators = count_operators(
        optimize_and_compare(draft, linear_heads(draft, x), linear_heads(draft, x))
    )
    assert operators["CONV2D"] == 2
    assert operators["MUL"] == 1
