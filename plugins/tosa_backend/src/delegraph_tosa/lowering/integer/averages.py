"""Averages of quantized values.

In the same quantization an average is AVG_POOL2D, which rounds once. In another one that would be rounding twice: then
it is a sum, whose RESCALE divides as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ...ir.graph import Value, literal
from ...ir.types import DType
from ..aten.reduce import axes_of
from ..builder import Shape, Tosa
from ..lazy import Lazy, Scaled, limit, operand, trial
from ..quantization import Quantization, Scale
from ..registry import RULES, lowers_quantized
from .arithmetic import summed
from .products import WIDE, Accumulating

aten = torch.ops.aten
Average = Callable[[Tosa, Value], Value]
"""The rule for floats, on integers."""


class Averaged(Lazy):
    """Averages of windows of ``of``."""

    __slots__ = ("average", "of")

    def __init__(self, of: Scaled, average: Average, shape: Shape) -> None:
        super().__init__(shape)
        self.of, self.average = of, average

    def integer(self, t: Tosa, to: Quantization) -> Value:
        same = (self.of.scale, self.of.zero_point, self.of.q.dtype) == (Scale(to.scale), to.zero_point, to.dtype)
        if same:
            inside = Accumulating(t, DType.INT32, to.zero_point, to.zero_point)
            return limit(t, self.average(inside, self.of.q), to.low, to.high)
        return self.summed(t).integer(t, to)

    def summed(self, t: Tosa) -> Scaled:
        """The averages as sums in a smaller scale."""
        inside = Summing(t, WIDE[self.of.q.dtype], self.of.zero_point, 0)
        sums = self.average(inside, self.of.q)
        t.require(inside.count is not None, "its windows have different sizes")
        return Scaled(sums, self.of.scale.times(inside.unit).over(inside.count or 1))

    def real(self, t: Tosa) -> Value:
        return self.average(t, self.of.real(t))


class Summing(Accumulating):
    """Sums where the rule averages: a depthwise convolution by ones. ``count`` elements each."""

    count: int | None = None

    def avg_pool2d(self, x: Value, kernel: Shape, stride: Shape, pad: Shape) -> Value:
        self.require(not any(pad), "its windows have different sizes")
        count = math.prod(kernel)
        self.require(self.count in (None, count) and x.dtype is not self.sums, "its windows have different sizes")
        self.count = count
        ones = self.once(("ones", kernel, x.shape[3]), lambda: _ones((*kernel, x.shape[3], 1)))
        operands = (x, ones, self.no_bias(x), pad, stride, (1, 1))
        return self.depthwise_conv2d(*operands)


def _ones(shape: Shape) -> Value:
    return literal(np.ones(shape), DType.INT8, np.int8)


def _averages(*overloads: Any) -> None:
    for overload in overloads:

        def averaged(t: Tosa, self: Value, *settings: Any, of: Any = overload) -> Lazy:
            """[N,C,*S] -> [N,C,*S']"""
            x = operand(t, self, "its input")
            average = RULES[of].function
            whole = average(trial(), Value(x.type), *settings)
            return Averaged(x, lambda t, v: average(t, v, *settings), whole.shape)

        lowers_quantized(overload)(averaged)


_averages(
    aten.avg_pool2d.default, aten.avg_pool3d.default, aten.adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool2d.default, aten.adaptive_avg_pool3d.default, aten._adaptive_avg_pool3d.default,
)  # fmt: skip


@lowers_quantized(aten.mean.dim)
def mean_dim(t: Tosa, self: Lazy, dim: Sequence[int] | None, keepdim: bool, dtype: torch.dtype | None) -> Lazy:
    """[*S] -> [*S']; over height and width of images it is a pool"""
    t.require(dtype in (None, torch.float32), f"a mean in {dtype} is not lowered")
    if self.rank == 4 and axes_of(dim, 4) == [2, 3]:
        size = self.shape[2:]
        kept = _pooled(t, self, size)
        return kept if keepdim else kept.moved(t, lambda t, v: t.reshape(v, v.shape[:2]), self.shape[:2])
    total, count = summed(t, self, dim, keepdim)
    return Scaled(total.q, total.scale.over(count))


def _pooled(t: Tosa, x: Lazy, size: Shape) -> Lazy:
    from_rule = RULES[aten.avg_pool2d.default].function

    def average(t: Tosa, v: Value) -> Value:
        result: Value = from_rule(t, v, size, size, (0, 0), False, True, None)
        return result

    return Averaged(operand(t, x, "its input"), average, (*x.shape[:2], 1, 1))
