"""Rounding to whole numbers, and the quotients and remainders that need it.

TOSA divides floats by RECIPROCAL and MUL, and that result can lie on the wrong side of a whole number. So a quotient is
first rounded to the nearest whole number, which the error can change only in ties, and then corrected by the remainder
that it leaves. To compute that remainder exactly, the divisor is split into two halves of 12 bits (``division``), and
the quotient into digits of 12 bits, so that products are exact; for divisors from 2^110 on only the digits that fp32
holds. A quotient below 2^24 has two such digits. For larger ones, up to 2^277, exactness would take 24 digits of eight
operators each, which no model pays for.
"""

from __future__ import annotations

import math

import torch

from ...ir.graph import Value
from ...ir.types import FLOATS, DType
from ..builder import Operand, Tosa
from ..builder.division import halves, rounded_quotient
from ..promotion import converted, promoted, truncated
from ..registry import lowers
from .elementwise import div

aten = torch.ops.aten
inf = math.inf
DIGIT = 1 << 12
"""One more than the largest digit of a quotient."""


def nearest(t: Tosa, x: Value) -> Value:
    """x [*S] -> the nearest whole numbers; of two equally near ones the even one; a zero keeps the sign of x."""
    low = t.floor(x)
    rest = t.sub(x, low)
    half = t.mul(low, 0.5)
    odd = t.greater(half, t.floor(half))
    up = t.logical_or(t.greater(rest, 0.5), t.logical_and(t.equal(rest, 0.5), odd))
    rounded = t.select(up, t.add(low, 1), low)
    return t.select(t.equal(rounded, 0), t.mul(x, 0), rounded)


@lowers(aten.trunc.default, aten.fix.default)
def trunc(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S], towards zero"""
    return truncated(t, self) if self.dtype in FLOATS else self


@lowers(aten.frac.default)
def frac(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; x minus its truncated value"""
    return t.sub(self, truncated(t, self))


@lowers(aten.round.default)
def round(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; ties go to the even number"""
    return nearest(t, self) if self.dtype in FLOATS else self


@lowers(aten.round.decimals)
def round_decimals(t: Tosa, self: Value, decimals: int) -> Value:
    """[*S] -> [*S]; multiplied by 10^decimals, rounded, and divided again, as torch does"""
    if self.dtype not in FLOATS or decimals == 0:
        t.require(decimals >= 0, f"rounding {self.dtype} to {decimals} decimals is not lowered")
        return round(t, self)
    scale = 10.0 ** abs(decimals)
    up, down = (scale, 1 / scale) if decimals > 0 else (1 / scale, scale)
    return t.mul(nearest(t, t.mul(self, up)), down)


def _operands(t: Tosa, left: Operand, right: Operand) -> tuple[Value, Value, DType]:
    """Both operands as values in the type to compute in (fp32, int32 or int64), and their common type."""
    a, b = promoted(t, left, right)
    x = a if isinstance(a, Value) else t.like(a, b)  # type: ignore[arg-type]
    y = b if isinstance(b, Value) else t.like(b, x)
    t.require(x.dtype is not DType.BOOL, "a remainder or a quotient of truth values is not lowered")
    wide = DType.FP32 if x.dtype in FLOATS else x.dtype if x.dtype is DType.INT64 else DType.INT32
    return converted(t, x, wide), converted(t, y, wide), x.dtype


def _operands_of_one_type(t: Tosa, left: Operand, right: Operand) -> tuple[Value, Value, DType]:
    """As ``_operands``, where torch first makes a number a tensor of the other's type.

    In ``x % 0.3`` it has 0.3 in bf16.
    """
    found = _operands(t, left, right)
    # the rounding is part of torch's result, so the rule need not run in fp32 because of it
    t.rounded_number = False
    return found


def _integer_quotient(t: Tosa, x: Value, y: Value, towards_zero: bool) -> tuple[Value, Value]:
    """(quotient, remainder) of integers, rounded down or towards zero.

    INTDIV rounds towards zero. Rounded down, a negative quotient with a remainder is one less.
    """
    quotient = t.intdiv(x, y)
    rest = t.sub(x, t.mul(quotient, y))
    if towards_zero:
        return quotient, rest
    apart = t.logical_xor(t.greater(0, rest), t.greater(0, y))
    down = t.logical_and(t.logical_not(t.equal(rest, 0)), apart)
    return t.select(down, t.sub(quotient, 1), quotient), t.select(down, t.add(rest, y), rest)


def _whole_quotient(t: Tosa, x: Value, y: Value, towards_zero: bool) -> tuple[Value, Value]:
    """(quotient, remainder) of x / y, rounded down (remainder with the sign of y) or towards zero (with the sign of x).

    A remainder of 0 has the sign of x in both cases. The quotient is rounded to the nearest first, which leaves a
    remainder of either sign. Where that is the wrong one, the quotient is moved by one, and the remainder by y.
    """
    if x.dtype not in FLOATS:
        return _integer_quotient(t, x, y, towards_zero)
    (upper, lower), inverse = halves(t, y), t.reciprocal(y)
    high = _high_digit(t, x, y, inverse)
    # the high digit is 0: nothing is subtracted, so that a zero keeps its sign
    none = t.equal(high, 0)
    rest = t.select(none, x, t.sub(t.sub(x, t.mul(high, upper)), t.mul(high, lower)))
    low = nearest(t, t.mul(rest, inverse))
    quotient = t.select(none, low, t.add(high, low))
    rest = t.sub(t.sub(rest, t.mul(low, upper)), t.mul(low, lower))
    wanted = x if towards_zero else y
    wrong = t.logical_xor(t.greater(0.0, rest), t.greater(0.0, wanted))
    wrong = t.logical_and(wrong, t.logical_not(t.equal(rest, 0)))
    step = t.select(t.logical_xor(t.greater(0.0, x), t.greater(0.0, y)), t.like(-1, x), 1.0) if towards_zero else 1.0
    moved = t.add(rest, t.mul(y, step))
    remainder = t.select(t.equal(rest, 0), t.mul(x, 0.0), t.select(wrong, moved, rest))
    return t.select(wrong, t.sub(quotient, step), quotient), remainder


def _high_digit(t: Tosa, x: Value, y: Value, inverse: Value) -> Value:
    """The multiple of 4096 that is nearest to x / y; 0 if y is so large that its multiples would overflow."""
    step = t.select(t.greater(t.abs(y), 2.0**110), t.like(0.0, y), t.mul(inverse, 1 / DIGIT))
    return t.mul(t.floor(t.add(t.mul(x, step), 0.5)), DIGIT)


@lowers(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(t: Tosa, self: Value, other: Operand) -> Value:
    """[*S], [*S] -> [*S]; the remainder with the sign of the dividend. It is exact while the quotient is below 2^24,
    and meaningless from there on
    """
    x, y, dtype = _operands_of_one_type(t, self, other)
    return converted(t, _whole_quotient(t, x, y, towards_zero=True)[1], dtype)


@lowers(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(t: Tosa, self: Operand, other: Operand) -> Value:
    """[*S], [*S] -> [*S]; the remainder with the sign of the divisor (0 has the dividend's). It is exact while the
    quotient is below 2^24, and meaningless from there on
    """
    x, y, dtype = _operands_of_one_type(t, self, other)
    return converted(t, _whole_quotient(t, x, y, towards_zero=False)[1], dtype)


@lowers(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(t: Tosa, self: Value, other: Operand) -> Value:
    """[*S], [*S] -> [*S]; the quotient, rounded down. Exact for floats while it is below 2^24; torch rounds a
    difference on the way, and its quotient may be one off
    """
    return _rounded_division(t, self, other, "floor")


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode, aten.divide.Tensor_mode)
def div_mode(t: Tosa, self: Value, other: Operand, rounding_mode: str | None) -> Value:
    """[*S], [*S] -> [*S]; rounded down ("floor"), towards zero ("trunc") or not at all"""
    return div(t, self, other) if rounding_mode is None else _rounded_division(t, self, other, rounding_mode)


def _rounded_division(t: Tosa, left: Operand, right: Operand, mode: str) -> Value:
    """left / right, rounded down ("floor") or towards zero ("trunc")."""
    x, y, dtype = _operands(t, left, right)
    if x.dtype not in FLOATS:
        return converted(t, _integer_quotient(t, x, y, mode == "trunc")[0], dtype)
    infinite = t.equal(t.abs(x), inf)
    x, y = _scaled_alike(t, x, y)
    # right where y is 0 or an operand is infinite
    unbounded = t.mul(x, t.reciprocal(y))
    if mode == "trunc":
        quotient = t.select(infinite, unbounded, truncated(t, rounded_quotient(t, x, y, unbounded)))
    else:
        quotient = t.select(infinite, math.nan, _whole_quotient(t, x, y, towards_zero=False)[0])
    beyond = t.logical_and(t.equal(t.abs(unbounded), inf), t.logical_not(infinite))
    bounded = t.select(t.logical_or(t.equal(y, 0), beyond), unbounded, quotient)
    return converted(t, bounded, dtype)


def _scaled_alike(t: Tosa, x: Value, y: Value) -> tuple[Value, Value]:
    """x and y, both multiplied by a power of two where 1 / y, or a product near a large x, would overflow."""
    scale = t.select(t.greater(2.0**-100, t.abs(y)), t.like(2.0**64, y), 1.0)
    large = t.logical_and(t.greater(t.abs(x), 2.0**100), t.greater(t.abs(y), 1.0))
    scale = t.select(large, t.like(2.0**-64, x), scale)
    return t.mul(x, scale), t.mul(y, scale)
