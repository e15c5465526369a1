"""Sums, products and comparisons of two quantized values. What has one run-time operand is a TABLE instead.

Both operands are brought to one scale in 32 bits, of which the larger scale is a power of two times: so fine that what
is lost does not show, and exact where the scales are equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ...ir.graph import Value
from ...ir.types import DType
from ..aten.reduce import axes_of, reduced
from ..builder import Tosa
from ..lazy import Clamped, Lazy, Scaled, rescale
from ..quantization import Scale
from ..ranges import range_of
from ..registry import RULES, lowers_quantized
from ..torch_types import refused

aten = torch.ops.aten
BITS = 29
"""A sum has at most this many bits beside its sign: RESCALE takes values below 2**(shift - 1) only."""


_UNQUANTIZED = "one of its operands is a sum or product that nothing quantizes before"


def _pair(t: Tosa, self: Any, other: Any) -> tuple[Scaled, Scaled] | None:
    """Both operands, if they are two run-time values; None if the operator is a function of one of them."""
    if not isinstance(self, Value) or not isinstance(other, Value) or _is_number(self) or _is_number(other):
        return None
    points = [v.pointwise() if isinstance(v, Lazy) else None for v in (self, other)]
    if points[0] and points[1] and points[0].source.is_like(points[1].source):
        return None
    return addend(t, self), addend(t, other)


def _is_number(value: Value) -> bool:
    return value.constant is not None and set(value.shape) <= {1} and not isinstance(value, Lazy)


def addend(t: Tosa, value: Value) -> Scaled:
    """A value with one scale, and integers of known size."""
    found = value.on_grid(t, value.of) if isinstance(value, Clamped) and isinstance(value.of, Scaled) else value
    if not isinstance(found, Scaled):
        raise refused(
            "one of its operands is " + ("quantized by nothing before" if isinstance(value, Lazy) else "a float")
        )
    t.require(not found.scale.tensors and size(found) < 1 << BITS, "one of its operands is quantized by nothing before")
    return found


def size(x: Scaled) -> int:
    """The largest distance from the zero point."""
    low, high = range_of(x.q)
    return max(abs(low - x.zero_point), abs(high - x.zero_point))


def _aligned(t: Tosa, values: Sequence[Scaled]) -> tuple[list[Value], float]:
    """The values in int32, without zero points, and the scale that all of them have."""
    largest = max(x.scale.factor for x in values)
    total = math.fsum(size(x) * x.scale.factor for x in values) / largest
    step = largest / 2.0 ** (BITS - math.ceil(math.log2(max(total, 1)) + 1e-9))
    return [_in_steps(t, x, step) for x in values], step


def _in_steps(t: Tosa, x: Scaled, step: float) -> Value:
    if x.q.dtype is DType.INT32 and x.scale.factor == step:
        return x.q
    return rescale(t, x, step, 0, DType.INT32)


@lowers_quantized(aten.add.Tensor)
def add(t: Tosa, self: Any, other: Any, alpha: float) -> Any:
    """[*S], [*S] -> [*S]"""
    return _sum(t, self, other, alpha, 1)


@lowers_quantized(aten.sub.Tensor, aten.subtract.Tensor)
def sub(t: Tosa, self: Any, other: Any, alpha: float) -> Any:
    """[*S], [*S] -> [*S]"""
    return _sum(t, self, other, alpha, -1)


@lowers_quantized(aten.rsub.Tensor)
def rsub(t: Tosa, self: Any, other: Any, alpha: float) -> Any:
    """[*S], [*S] -> [*S]"""
    return _sum(t, other, self, alpha, -1)


def _sum(t: Tosa, left: Any, right: Any, alpha: float, sign: int) -> Any:
    pair = _pair(t, left, right)
    if pair is None:
        return NotImplemented
    t.require(alpha == 1, f"a sum with a factor of {alpha} is not lowered")
    (x, y), step = _aligned(t, pair)
    return Scaled(t.add(x, y) if sign > 0 else t.sub(x, y), Scale(step))


@lowers_quantized(aten.mul.Tensor, aten.multiply.Tensor)
def mul(t: Tosa, self: Any, other: Any) -> Any:
    """[*S], [*S] -> [*S]"""
    pair = _pair(t, self, other)
    if pair is None:
        return NotImplemented
    t.require(size(pair[0]) * size(pair[1]) < 1 << 31, "a product of more than 32 bits")
    plain = all(x.zero_point == 0 and x.q.dtype is pair[0].q.dtype for x in pair)
    x, y = [p.q if plain else _in_steps(t, p, p.scale.factor) for p in pair]
    return Scaled(t.mul(x, y), pair[0].scale.times(pair[1].scale))


def _compares(overload: Any) -> None:
    def compared(t: Tosa, self: Any, other: Any) -> Any:
        """[*S], [*S] -> bool [*S]"""
        pair = _pair(t, self, other)
        if pair is None:
            return NotImplemented
        integers, _ = _aligned(t, pair)
        return RULES[overload].function(t, *integers)

    lowers_quantized(overload)(compared)


for compare in (aten.eq, aten.ne, aten.gt, aten.ge, aten.lt, aten.le):
    _compares(compare.Tensor)


def _chooses(*overloads: Any, larger: bool) -> None:
    def chosen(t: Tosa, self: Any, other: Any) -> Any:
        """[*S], [*S] -> [*S]; of what is quantized in the same way one is chosen, else of the two in one scale"""
        pair = _pair(t, self, other)
        if pair is None:
            return NotImplemented
        (x, y), step = _aligned(t, pair)
        return Scaled(t.maximum(x, y) if larger else t.minimum(x, y), Scale(step))

    lowers_quantized(*overloads)(chosen)


_chooses(aten.maximum.default, aten.max.other, larger=True)
_chooses(aten.minimum.default, aten.min.other, larger=False)


@lowers_quantized(aten.sum.default)
def sum(t: Tosa, self: Lazy, dtype: torch.dtype | None) -> Lazy:
    """[*S] -> []"""
    return sum_dim(t, self, None, False, dtype)


@lowers_quantized(aten.sum.dim_IntList)
def sum_dim(t: Tosa, self: Lazy, dim: Sequence[int] | None, keepdim: bool, dtype: torch.dtype | None) -> Lazy:
    """[*S] -> [*S']"""
    t.require(dtype in (None, torch.float32), f"a sum in {dtype} is not lowered")
    return summed(t, self, dim, keepdim)[0]


def summed(t: Tosa, x: Lazy, dim: Sequence[int] | None, keepdim: bool) -> tuple[Scaled, int]:
    """x [*S] -> its sum over ``dim`` [*S'], and of how many elements each is one"""
    found = addend(t, x)
    count = math.prod([found.shape[a] for a in axes_of(dim, found.rank)])
    t.require(size(found) * count < 1 << 31, "a sum of more than 32 bits")
    q = _in_steps(t, found, found.scale.factor)
    return Scaled(reduced(t, q, t.reduce_sum, dim, keepdim), found.scale), count
