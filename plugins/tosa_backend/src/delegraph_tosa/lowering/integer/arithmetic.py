"""Sums, products and comparisons of two quantized values. What has one run-time operand is a TABLE instead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import torch
from delegraph.errors import Unsupported

from ...ir.graph import Value
from ...ir.sizes import greatest, is_dynamic
from ...ir.types import DType
from ..aten.activation import leaky_relu, slopes_shape
from ..aten.reduce import axes_of, reduced
from ..builder import Tosa
from ..lazy.quantization import Scale
from ..lazy.values import BITS, Joined, Lazy, Scaled, limit, trial
from ..registry import lowering_of, lowers
from .affine import multiplied, sloped
from .division import Quotient
from .moves import where
from .products import real_elements
from .sums import HIDES, Shifted, addend, aligned, centred, times

aten = torch.ops.aten


def _is_table(*operands: Any) -> bool:
    """Whether a call is a function of each element of one quantized value."""
    points = [v.pointwise() for v in operands if isinstance(v, Lazy)]
    others = [v for v in operands if isinstance(v, Value) and not isinstance(v, Lazy)]
    if points[0] is None or not all(v.constant is not None and set(v.shape) <= {1} for v in others):
        return False
    return all(p is not None and p.source.is_like(points[0].source) for p in points)


def _is_constant(value: Any) -> bool:
    return not isinstance(value, Lazy) and (not isinstance(value, Value) or value.constant is not None)


@lowers(aten.add.Tensor, aten.add.Scalar, on=Lazy)
def add(t: Tosa, self: Any, other: Any, alpha: float) -> Any:
    """[*S], [*S] -> [*S]"""
    return _sum(t, self, other, alpha, 1)


@lowers(aten.sub.Tensor, aten.sub.Scalar, aten.subtract.Tensor, on=Lazy)
def sub(t: Tosa, self: Any, other: Any, alpha: float) -> Any:
    """[*S], [*S] -> [*S]"""
    return _sum(t, self, other, alpha, -1)


@lowers(aten.rsub.Tensor, aten.rsub.Scalar, on=Lazy)
def rsub(t: Tosa, self: Any, other: Any, alpha: float) -> Any:
    """[*S], [*S] -> [*S]"""
    return _sum(t, other, self, alpha, -1)


def _sum(t: Tosa, left: Any, right: Any, alpha: float, sign: int) -> Any:
    if _is_table(left, right):
        return NotImplemented
    first, second = left, _times(t, right, alpha)
    for x, by, turns in ((first, second, (1, sign)), (second, first, (sign, 1))):
        if isinstance(x, Lazy) and _is_apart(t, by):
            return _shifted(t, x if turns[0] > 0 else times(t, x, -1), _times(t, by, turns[1]))
    (x, y), step = aligned(t, [addend(t, first), addend(t, second)])
    return Scaled(t.add(x, y) if sign > 0 else t.sub(x, y), Scale(step))


def _is_apart(t: Tosa, value: Any) -> bool:
    """Whether an operand has no scale, or hides elements."""
    return not isinstance(value, Lazy) or (value.reach(t) > value.reach(t, HIDES))


def _shifted(t: Tosa, x: Lazy, by: Any) -> Lazy:
    number = by if isinstance(by, Value) else t.constant(by, x.dtype, ())
    return Shifted(x, number, lowering_of(aten.add.Tensor)(trial(), Value(x.type), Value(number.type), 1).shape)


def _times(t: Tosa, value: Any, factor: float) -> Any:
    """An operand times a number: of a constant a constant."""
    if factor == 1:
        return value
    if isinstance(value, Lazy):
        return times(t, value, factor)
    if isinstance(value, Value):
        return t.mul(value, float(factor))
    return value * factor


@lowers(aten.neg.default, aten.negative.default, on=Lazy)
def neg(t: Tosa, self: Lazy) -> Any:
    """[*S] -> [*S]"""
    return NotImplemented if _is_table(self) else times(t, self, -1)


@lowers(aten.abs.default, aten.absolute.default, on=Lazy)
def abs(t: Tosa, self: Lazy) -> Any:
    """[*S] -> [*S]"""
    if _is_table(self):
        return NotImplemented
    x = addend(t, self)
    return Scaled(t.abs(centred(t, x, x.scale.factor)), x.scale)


@lowers(aten.mul.Tensor, aten.mul.Scalar, aten.multiply.Tensor, on=Lazy)
def mul(t: Tosa, self: Any, other: Any) -> Any:
    """[*S], [*S] -> [*S]"""
    if _is_table(self, other):
        return NotImplemented
    for x, factor in ((self, other), (other, self)):
        if not isinstance(factor, Value):
            return times(t, x, factor)
        if factor.dtype is DType.BOOL:
            return where(t, factor, x, 0.0)
        if _is_constant(factor):
            return multiplied(t, addend(t, x), factor)
    return _product(t, addend(t, self), addend(t, other))


@lowers(aten.prelu.default, on=Lazy)
def prelu(t: Tosa, self: Lazy, weight: Value) -> Lazy:
    """[N,C,*S], [C] or [1] -> [N,C,*S]; a TABLE, if all slopes are the same"""
    t.require(weight.constant is not None, "its slopes are computed at run time")
    table, slope = self.pointwise(), _same(weight)
    if table is not None and slope is not None:
        return table.then(lambda t, x: leaky_relu(t, x, slope))
    return sloped(t, addend(t, self), slopes_shape(self, weight), weight)


def _same(constant: Value) -> float | None:
    """The number that all elements are; None if there are several, and in the support check."""
    try:
        numbers = set(real_elements(constant).flat)
    except Unsupported:
        return None
    return numbers.pop() if len(numbers) == 1 else None


@lowers(aten.hardsigmoid.default, on=Lazy)
def hardsigmoid(t: Tosa, self: Lazy) -> Any:
    """[*S] -> [*S]"""
    return _gate(t, self) if _is_int16(self) else NotImplemented


@lowers(aten.hardswish.default, on=Lazy)
def hardswish(t: Tosa, self: Lazy) -> Any:
    """[*S] -> [*S]"""
    return _product(t, addend(t, self), _gate(t, self)) if _is_int16(self) else NotImplemented


def _is_int16(x: Lazy) -> bool:
    """Whether a function of ``x`` whose kinks lie between the entries of a TABLE is not near enough as one."""
    return isinstance(x, Scaled) and x.q.dtype is DType.INT16


def _gate(t: Tosa, self: Lazy) -> Scaled:
    """clamp(x + 3, 0, 6) / 6, of 28 bits"""
    x = addend(t, self)
    step = max(x.size * x.scale.factor, 3.0) / 2.0 ** (BITS - 1)
    three = round(3 / step)
    gate = limit(t, t.add(centred(t, x, step), three), 0, 2 * three)
    return Scaled(gate, Scale(step / 6))


def _product(t: Tosa, left: Scaled, right: Scaled) -> Scaled:
    scale = left.scale.times(right.scale)
    if left.zero_point == right.zero_point == 0 and left.q.dtype is right.q.dtype and left.is_small:
        return Scaled(t.mul(left.q, right.q), scale)
    x, y = [centred(t, p, p.scale.factor) for p in (left, right)]
    lost = max(0, (left.size * right.size).bit_length() - BITS)
    return Scaled(t.mul(x, y, shift=lost), scale.times(Scale(2.0**lost)))


@lowers(aten.div.Tensor, aten.div.Scalar, aten.divide.Tensor, aten.true_divide.Tensor, on=Lazy)
def div(t: Tosa, self: Any, other: Any) -> Any:
    """[*S], [*S] -> [*S]"""
    if _is_table(self, other):
        return NotImplemented
    if not isinstance(other, Value):
        return times(t, self, 1 / other)
    if _is_constant(other):
        return multiplied(t, addend(t, self), t.reciprocal(other))
    shape = lowering_of(aten.div.Tensor)(trial(), Value(self.type), Value(other.type)).shape
    return Quotient(addend(t, self), addend(t, other), shape)


def _compares(packet: Any) -> None:
    def compared(t: Tosa, self: Any, other: Any) -> Any:
        """[*S], [*S] -> bool [*S]"""
        if _is_table(self, other):
            return NotImplemented
        integers, _ = aligned(t, [_compared(t, v) for v in (self, other)])
        return lowering_of(packet.Tensor)(t, *integers)

    lowers(packet.Tensor, packet.Scalar, on=Lazy)(compared)


def _compared(t: Tosa, value: Any) -> Scaled:
    """An operand; a number is one step, of its own size."""
    if isinstance(value, Value):
        return addend(t, value)
    t.require(math.isfinite(value), f"comparing sums with {value} is not lowered")
    return Scaled(t.constant((value > 0) - (value < 0), DType.INT32, ()), Scale(math.fabs(value) or 1.0))


for compare in (aten.eq, aten.ne, aten.gt, aten.ge, aten.lt, aten.le):
    _compares(compare)


def _chooses(*overloads: Any, larger: bool) -> None:
    def choose(t: Tosa, pair: Sequence[Value]) -> Value:
        left, right = (v if v.dtype is DType.FP32 else t.cast(v, DType.INT32) for v in pair)
        return t.cast((t.maximum if larger else t.minimum)(left, right), pair[0].dtype)

    def chosen(t: Tosa, self: Any, other: Any) -> Any:
        """[*S], [*S] -> [*S]; of what is quantized in the same way one is chosen, else of the two in one scale"""
        if _is_table(self, other):
            return NotImplemented
        if _is_constant(self) or _is_constant(other):
            return Joined([self, other], choose, choose(trial(), [Value(self.type), Value(other.type)]).shape)
        pair, step = aligned(t, [addend(t, self), addend(t, other)])
        return Scaled(choose(t, pair), Scale(step))

    lowers(*overloads, on=Lazy)(chosen)


_chooses(aten.maximum.default, aten.max.other, larger=True)
_chooses(aten.minimum.default, aten.min.other, larger=False)


@lowers(aten.clamp.Tensor, on=Lazy)
def clamp_tensor(t: Tosa, self: Value, min: Value | None, max: Value | None) -> Any:
    """[*S], [*S], [*S] -> [*S]"""
    limits = [limit for limit in (min, max) if limit is not None]
    if _is_table(self, *limits):
        return NotImplemented
    above = self if min is None else lowering_of(aten.maximum.default, Lazy)(t, self, min)
    t.require(above is not NotImplemented, "one of its limits is a function of what it limits, the other is not")
    return above if max is None else lowering_of(aten.minimum.default, Lazy)(t, above, max)


@lowers(aten.sum.default, on=Lazy)
def sum(t: Tosa, self: Lazy, dtype: torch.dtype | None) -> Lazy:
    """[*S] -> []"""
    return sum_dim(t, self, None, False, dtype)


@lowers(aten.sum.dim_IntList, on=Lazy)
def sum_dim(t: Tosa, self: Lazy, dim: Sequence[int] | None, keepdim: bool, dtype: torch.dtype | None) -> Lazy:
    """[*S] -> [*S']"""
    t.require(dtype in (None, torch.float32), f"a sum in {dtype} is not lowered")
    return summed(t, self, dim, keepdim)[0]


FACTORS = 8
"""The most of them: products of more may be so much smaller than the largest one that no bits are left of them."""


@lowers(aten.prod.dim_int, on=Lazy)
def prod_dim(t: Tosa, self: Lazy, dim: int, keepdim: bool, dtype: torch.dtype | None) -> Lazy:
    """[*A,N,*B] -> [*A,*B]"""
    t.require(dtype in (None, torch.float32), f"a product in {dtype} is not lowered")
    x, (axis,) = addend(t, self), axes_of(dim, self.rank)
    t.require(not is_dynamic(x.shape[axis]) and x.shape[axis] <= FACTORS, f"a product of more than {FACTORS} elements")
    size = [1 if a == axis else n for a, n in enumerate(x.shape)]
    starts = [[k if a == axis else 0 for a in range(x.rank)] for k in range(x.shape[axis])]
    y = reduce(partial(_product, t), [Scaled(t.slice(x.q, start, size), x.scale, x.zero_point) for start in starts])
    rest = size if keepdim else [*size[:axis], *size[axis + 1 :]]
    return Scaled(t.reshape(y.q, rest), y.scale, y.zero_point)


KEPT = 20
"""Bits of an element that a sum of few may not lose because it could be one of many."""


def lost_in_sum(t: Tosa, size: int, count: int, bits: int) -> int:
    """How many low bits ``count`` integers up to ``size`` lose, so that their sum has ``bits`` at most."""
    lost = max(0, (size * greatest(count)).bit_length() - bits)
    fine = lost == 0 or not is_dynamic(count) or size.bit_length() - lost >= KEPT
    t.require(fine, f"it sums up to {greatest(count)} elements, too many for 32 bits; torch.export.Dim takes a max")
    return lost


def summed(t: Tosa, x: Lazy, dim: Sequence[int] | None, keepdim: bool) -> tuple[Scaled, int]:
    """x [*S] -> its sum over ``dim`` [*S'], and of how many elements each is one"""
    found = addend(t, x)
    count = math.prod([found.shape[a] for a in axes_of(dim, found.rank)])
    lost = lost_in_sum(t, found.size, count, 31)
    step = found.scale.factor * 2.0**lost
    return Scaled(reduced(t, centred(t, found, step), t.reduce_sum, dim, keepdim), Scale(step)), count
