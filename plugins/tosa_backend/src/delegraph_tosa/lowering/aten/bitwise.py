"""Bitwise operators and shifts.

On bools they are the logical operators of the same name.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ...ir.graph import Value
from ...ir.types import BYTES, DType
from ..builder import Operand, Tosa
from ..promotion import converted, promoted
from ..ranges.value_ranges import inside, range_of
from ..registry import lowers
from .int32_conditions import has_comparisons, in_five_bits, inverted_where, negative

aten = torch.ops.aten


@lowers(aten.bitwise_not.default)
def bitwise_not(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]"""
    if self.dtype is DType.BOOL:
        return t.logical_not(self)
    return t.bitwise_not(self)


def _are_bool(left: Operand, right: Operand) -> bool:
    """Return whether two operands are bools, after ``promoted`` gave them one type.

    At least one is a tensor.
    """
    value = left if isinstance(left, Value) else right
    return isinstance(value, Value) and value.dtype is DType.BOOL


@lowers(
    aten.bitwise_and.Tensor, aten.bitwise_and.Scalar, aten.bitwise_and.Scalar_Tensor
)
@lowers(aten.__and__.Tensor, aten.__and__.Scalar)
def bitwise_and(t: Tosa, self: Operand, other: Operand) -> Value:
    """[*S], [*S] -> [*S]"""
    left, right = promoted(t, self, other)
    if _are_bool(left, right):
        return t.logical_and(left, right)
    return t.bitwise_and(left, right)


@lowers(aten.bitwise_or.Tensor, aten.bitwise_or.Scalar, aten.bitwise_or.Scalar_Tensor)
@lowers(aten.__or__.Tensor, aten.__or__.Scalar)
def bitwise_or(t: Tosa, self: Operand, other: Operand) -> Value:
    """[*S], [*S] -> [*S]"""
    left, right = promoted(t, self, other)
    if _are_bool(left, right):
        return t.logical_or(left, right)
    return t.bitwise_or(left, right)


@lowers(
    aten.bitwise_xor.Tensor, aten.bitwise_xor.Scalar, aten.bitwise_xor.Scalar_Tensor
)
@lowers(aten.__xor__.Tensor, aten.__xor__.Scalar)
def bitwise_xor(t: Tosa, self: Operand, other: Operand) -> Value:
    """[*S], [*S] -> [*S]"""
    left, right = promoted(t, self, other)
    if _are_bool(left, right):
        return t.logical_xor(left, right)
    return t.bitwise_xor(left, right)


class _Shift(NamedTuple):
    """The operands of a shift of ``x``.

    TOSA shifts by 0 .. bits - 1 only. ``amount`` is clamped to this range; ``within``
    is true where the requested amount is in it. On a target that cannot select,
    ``within`` is int32 0 and 1. None means true everywhere.
    """

    x: Value
    amount: Value
    within: Value | None


def _limited_shift(t: Tosa, left: Operand, right: Operand) -> _Shift:
    """Return the operands of a shift of ``left`` by ``right``."""
    x, requested = _shift_operands(t, left, right)
    most = 8 * BYTES[x.dtype] - 1
    if inside(range_of(requested), (0, most)):
        return _Shift(x, requested, None)
    if x.dtype is DType.INT32 and not has_comparisons(t):
        amount, within = in_five_bits(t, requested)
        return _Shift(x, amount, within)
    amount = t.minimum(t.maximum(requested, 0), most)
    return _Shift(x, amount, t.equal(requested, amount))


def _shift_operands(t: Tosa, left: Operand, right: Operand) -> tuple[Value, Value]:
    """Return ``left`` in the common type of both operands, and ``right`` as int32."""
    a, b = promoted(t, left, right)
    x = a if isinstance(a, Value) else t.like(a, b)  # type: ignore[arg-type]
    amount = b if isinstance(b, Value) else t.like(b, x)
    return x, converted(t, amount, DType.INT32)


@lowers(
    aten.bitwise_left_shift.Tensor,
    aten.bitwise_left_shift.Tensor_Scalar,
    aten.bitwise_left_shift.Scalar_Tensor,
)
@lowers(aten.__lshift__.Tensor, aten.__lshift__.Scalar)
def bitwise_left_shift(t: Tosa, self: Operand, other: Operand) -> Value:
    """[*S], [*S] -> [*S]; 0 where the amount is negative or at least the number of bits"""
    x, amount, within = _limited_shift(t, self, other)
    shifted = t.left_shift(x, converted(t, amount, x.dtype))
    if within is None:
        return shifted
    if within.dtype is DType.INT32:
        return t.mul(shifted, within)
    return t.select(within, shifted, 0)


@lowers(
    aten.bitwise_right_shift.Tensor,
    aten.bitwise_right_shift.Tensor_Scalar,
    aten.bitwise_right_shift.Scalar_Tensor,
)
@lowers(aten.__rshift__.Tensor, aten.__rshift__.Scalar)
def bitwise_right_shift(t: Tosa, self: Operand, other: Operand) -> Value:
    """[*S], [*S] -> [*S]; 0 or -1, the sign, where the amount is negative or at least
    the number of bits
    """
    x, requested = _shift_operands(t, self, other)
    if not has_comparisons(t) and x.dtype is DType.INT32:
        return _arithmetic_right_shift(t, x, requested)
    if not has_comparisons(t) and x.dtype is DType.INT64 and not t.has_int64:
        shifted = _arithmetic_right_shift(t, t.narrowed(x), requested)
        return t.widened(shifted)
    x, amount, within = _limited_shift(t, self, other)
    if within is not None:
        # a shift by all bits but one leaves the sign: 0 or -1
        amount = t.select(within, amount, 8 * BYTES[x.dtype] - 1)
    if x.dtype is DType.INT64 and x.constant is None and not t.has_int64:
        # x is computed as int32, where a shift by 31 leaves the sign already
        amount = t.minimum(amount, 31)
    return t.right_shift(x, converted(t, amount, x.dtype))


def _arithmetic_right_shift(t: Tosa, x: Value, requested: Value) -> Value:
    """Return int32 x shifted right with its sign, for targets without comparisons.

    Their shift brings zeros in from the left, which is right for x >= 0. The bits of a
    negative x are inverted before and after it.
    """
    amount, within = in_five_bits(t, requested)
    is_negative = negative(t, x)
    bits = inverted_where(t, is_negative, x)
    shifted = t.right_shift_of_bits(bits, amount)
    if within is not None:
        shifted = t.mul(shifted, within)
    return inverted_where(t, is_negative, shifted)
