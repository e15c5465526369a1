"""Rows for integer rules: a function between dequantize and quantize, compared with the
same graph in eager.

Integers are inputs and output, and the target has no floats: what comes out was
computed in integers. A family's test file makes an ``IntegerFamily``, fills it, and
takes its test.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
from delegraph_tosa.backend import compile_program
from delegraph_tosa.evaluate import evaluate
from delegraph_tosa.serialize import TosaFile
from delegraph_tosa.spec import TosaSpec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from .rule_cases import Function, judge

quantized_decomposed = torch.ops.quantized_decomposed
LIMITS = {torch.int8: (-128, 127), torch.int16: (-32768, 32767)}
SPECS = {
    torch.int8: TosaSpec.parse("TOSA-1.0+INT"),
    torch.int16: TosaSpec.parse("TOSA-1.0+INT+int16"),
}

Parameters = tuple[float, int]
"""Scale and zero point."""


def dequantize(x: Tensor, scale: float, zero_point: int) -> Tensor:
    return quantized_decomposed.dequantize_per_tensor(
        x, scale, zero_point, *LIMITS[x.dtype], x.dtype
    )


def quantize(x: Tensor, scale: float, zero_point: int, dtype: torch.dtype) -> Tensor:
    return quantized_decomposed.quantize_per_tensor(
        x, scale, zero_point, *LIMITS[dtype], dtype
    )


class Quantized(nn.Module):
    """``function`` of dequantized integers, quantized."""

    def __init__(
        self,
        function: nn.Module,
        given: Sequence[Parameters],
        wanted: Parameters,
        dtype: torch.dtype,
    ):
        super().__init__()
        self.function = function
        self.given = given
        self.wanted = wanted
        self.dtype = dtype

    def forward(self, *integers: Tensor) -> Tensor:
        reals = [
            dequantize(x, *given) for x, given in zip(integers, self.given, strict=True)
        ]
        result = self.function(*reals)
        return (
            quantize(result, *self.wanted, self.dtype)
            if result.is_floating_point()
            else result
        )


class WithWeight(nn.Module):
    """A function of the input, a weight with a scale for each index of ``axis``, and a
    bias.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        weight: Tensor,
        bias: Tensor | None = None,
        axis: int = 0,
    ):
        super().__init__()
        others = [d for d in range(weight.dim()) if d != axis]
        scales = (weight.abs().amax(others) / 127).clamp_min(1e-6)
        broadcast = scales.reshape(
            [-1 if d == axis else 1 for d in range(weight.dim())]
        )
        self.function = function
        self.axis = axis
        self.register_buffer(
            "weight", (weight / broadcast).round().clamp(-127, 127).to(torch.int8)
        )
        self.register_buffer("scales", scales)
        self.register_buffer("zero_points", torch.zeros(len(scales), dtype=torch.int64))
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, *inputs: Tensor) -> Tensor:
        weight = quantized_decomposed.dequantize_per_channel(
            self.weight, self.scales, self.zero_points, self.axis, -127, 127, torch.int8
        )
        return self.function(*inputs, weight, self.bias)


def fit(y: Tensor, dtype: torch.dtype, spread: float = 1.0) -> Parameters:
    """A scale and zero point in which ``y`` fills ``1 / spread`` of the range."""
    if not y.is_floating_point():
        return 1.0, 0
    low = min(y.min().item(), 0.0)
    high = max(y.max().item(), 1e-3)
    if dtype is torch.int16:
        return max(-low, high) / 32767 * spread, 0
    scale = (high - low) / 255 * spread
    return scale, max(-128, min(127, round(-128 - low / scale)))


def quantized_row(
    function: Callable[..., Tensor],
    shapes: Sequence[Sequence[int]],
    dtype: torch.dtype,
    seed: int,
    magnitudes: tuple[float, float] = (-2.5, -1),
) -> Any:
    """A module and its inputs: random integers, random scales and zero points, and a
    result that fills its range.

    The scales of int8 lie between these powers of ten, those of int16 are finer by the
    bits that it has more.
    """
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    low, high = LIMITS[dtype]
    inputs = [
        torch.randint(low, high + 1, tuple(shape), generator=generator, dtype=dtype)
        for shape in shapes
    ]
    steps = 1 if dtype is torch.int8 else 256
    given = [
        (
            10 ** draw.uniform(*magnitudes) / steps,
            draw.randint(-128, 127) if dtype is torch.int8 else 0,
        )
        for _ in inputs
    ]
    inner = function if isinstance(function, nn.Module) else Function(function)
    y = inner(*[dequantize(x, *p) for x, p in zip(inputs, given, strict=True)])
    return (
        Quantized(inner, given, fit(y, dtype, draw.uniform(0.8, 1.3)), dtype).eval(),
        inputs,
    )


def assert_within_steps(
    found: np.ndarray, wanted: Tensor, equal: float = 0.99, steps: int = 1
) -> None:
    """Within ``steps`` quantization steps everywhere, and the same for a share of
    ``equal``, but for one element.
    """
    assert found.shape == tuple(wanted.shape)
    assert str(found.dtype) == str(wanted.dtype).removeprefix("torch.")
    distance = np.abs(found.astype(np.int64) - wanted.numpy().astype(np.int64))
    assert distance.max() <= steps
    assert (distance == 0).mean() >= equal - 1 / distance.size


class IntegerFamily:
    """The rows of one family of integer rules, by name."""

    def __init__(self) -> None:
        self.rows: dict[
            str, tuple[nn.Module, list[Tensor], torch.dtype, dict[str, Any]]
        ] = {}
        self._functions: dict[
            str, tuple[Callable[..., Tensor], Sequence[Sequence[int]]]
        ] = {}

    def case(
        self,
        name: str,
        function: Callable[..., Tensor],
        *shapes: Sequence[int],
        dtypes: Sequence[torch.dtype] = (torch.int8, torch.int16),
        magnitudes: tuple[float, float] = (-2.5, -1),
        **bound: Any,
    ) -> None:
        """One row an element type; ``bound`` is what ``check`` allows, its reason
        stands beside the row.
        """
        for dtype in dtypes:
            full = f"{name}-{dtype}".replace("torch.", "")
            assert full not in self.rows, full
            self._functions[full] = function, shapes
            self.rows[full] = (
                *quantized_row(function, shapes, dtype, len(self.rows), magnitudes),
                dtype,
                bound,
            )

    def equals_eager(self) -> tuple[Callable[..., Any], Callable[..., None]]:
        """A fixture to be called ``judged``, and the test that every row computes what
        the Q/DQ graph does in eager.

        ``evaluate`` and the reference model give the same bits.
        """

        @pytest.fixture(scope="module")
        def judged(tmp_path_factory):
            pytest.importorskip("tosa_reference_model")
            graphs = {name: self._compiled(name) for name in self.rows}
            work = [
                (
                    name,
                    TosaFile(graph, SPECS[self.rows[name][2]]).join(),
                    _arrays(self.rows[name][1]),
                )
                for name, graph in graphs.items()
            ]
            results = judge(work, tmp_path_factory.mktemp("reference"))
            return {name: (graphs[name], *results[name]) for name in self.rows}

        @pytest.mark.parametrize("name", self.rows)
        def test(name, judged):
            module, inputs, _, bound = self.rows[name]
            graph, (found,), valid = judged[name]
            assert valid
            np.testing.assert_array_equal(evaluate(graph, _arrays(inputs))[0], found)
            assert_within_steps(found, module(*inputs), **bound)

        return judged, test

    def sweep(self, least: float = -4.5, most: float = 1.5) -> Callable[..., None]:
        """The slow test that every row does so for scales between these powers of ten,
        and all zero points.

        In ``evaluate``. Above the largest scales, eager itself is not exact to a step.
        """

        @pytest.mark.slow
        @pytest.mark.parametrize("name", self.rows)
        @settings(
            max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        )
        @given(seed=st.integers(0, 2**32), magnitude=st.floats(least, most))
        def test(name, seed, magnitude):
            dtype, (function, shapes) = self.rows[name][2], self._functions[name]
            module, inputs = quantized_row(
                function, shapes, dtype, seed, (magnitude - 0.7, magnitude)
            )
            graph = compile_program(
                torch.export.export(module, tuple(inputs)), SPECS[dtype]
            )
            found = evaluate(graph, _arrays(inputs))[0]
            # of the share of 99 % in so many elements
            deviation = math.sqrt(0.99 * 0.01 / found.size)
            expected = module(*inputs)
            assert_within_steps(
                found,
                expected,
                equal=0.0 if _is_flat(expected) else 0.99 - 4 * deviation,
            )

        return test

    def _compiled(self, name: str) -> Any:
        module, inputs, dtype, _ = self.rows[name]
        return compile_program(torch.export.export(module, tuple(inputs)), SPECS[dtype])


def _is_flat(integers: Tensor) -> bool:
    """Whether all are one number, or it and the next: near a half of a step, what one
    loses they all lose.
    """
    return integers.dtype is not torch.bool and bool(
        integers.max() - integers.min() <= 1
    )


def _arrays(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    return [t.numpy() for t in tensors]
