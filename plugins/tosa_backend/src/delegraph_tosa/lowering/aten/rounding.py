"""Rounding to whole numbers, and the quotients and remainders that rest on it.

TOSA divides floats by RECIPROCAL and MUL, whose result can lie on the wrong side of a whole number. So a quotient is
rounded to the nearest whole number, which that cannot change but in ties, and corrected by what it leaves. What it
leaves is computed with the divisor in two halves of 12 bits (``division``), so that products with 12 bits of a quotient
are exact; from divisors of 2^110 on only what fp32 holds. A quotient below 2^24 has two such digits. Larger ones fp32
does not count one by one, and the remainder that they leave would take a digit for every 12 bits: 24 of them for the
quotients up to 2^277 that two floats can have, eight operators each, which no model pays for.
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


def nearest(t: Tosa, x: Value) -> Value:
    """x [*S] -> the nearest whole numbers, of two equally near ones the even; a zero keeps the sign of x."""
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
    """[*S] -> [*S]; what truncation takes off"""
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
    """Both as values in fp32, or in 32 or 64 bits if they are integers, and their common type."""
    a, b = promoted(t, left, right)
    x = a if isinstance(a, Value) else t.like(a, b)  # type: ignore[arg-type]
    y = b if isinstance(b, Value) else t.like(b, x)
    t.require(x.dtype is not DType.BOOL, "a remainder or a quotient of truth values is not lowered")
    wide = DType.FP32 if x.dtype in FLOATS else x.dtype if x.dtype is DType.INT64 else DType.INT32
    return converted(t, x, wide), converted(t, y, wide), x.dtype


def _operands_of_one_type(t: Tosa, left: Operand, right: Operand) -> tuple[Value, Value, DType]:
    """The same, where torch makes a number a tensor of the other operand's type: ``x % 0.3`` has 0.3 in bf16."""
    found = _operands(t, left, right)
    t.rounded_number = False  # it is meant to be
    return found


def _integer_quotient(t: Tosa, x: Value, y: Value, towards_zero: bool) -> tuple[Value, Value]:
    """(quotient, remainder) of integers. INTDIV cuts towards zero: below, where that is up, one less."""
    quotient = t.intdiv(x, y)
    rest = t.sub(x, t.mul(quotient, y))
    if towards_zero:
        return quotient, rest
    apart = t.logical_xor(t.greater(0, rest), t.greater(0, y))
    down = t.logical_and(t.logical_not(t.equal(rest, 0)), apart)
    return t.select(down, t.sub(quotient, 1), quotient), t.select(down, t.add(rest, y), rest)


def _whole_quotient(t: Tosa, x: Value, y: Value, towards_zero: bool) -> tuple[Value, Value]:
    """(quotient, remainder) of x / y, rounded down or towards zero: the remainder has the sign of y, or that of x.

    A remainder of 0 has the sign of x in both cases.
    The nearest quotient leaves a remainder of either sign; where it is not the wanted one, the quotient was one too
    far from where it is rounded to.
    """
    if x.dtype not in FLOATS:
        return _integer_quotient(t, x, y, towards_zero)
    (upper, lower), inverse = halves(t, y), t.reciprocal(y)
    high = _first_digit(t, x, y, inverse)
    none = t.equal(high, 0)  # where zeros keep their signs
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


def _first_digit(t: Tosa, x: Value, y: Value, inverse: Value) -> Value:
    """The multiple of 4096 that is nearest to x / y; 0 of a y so large that its multiples would overflow."""
    step = t.select(t.greater(t.abs(y), 2.0**110), t.like(0.0, y), t.mul(inverse, 1 / DIGIT))
    return t.mul(t.floor(t.add(t.mul(x, step), 0.5)), DIGIT)


@lowers(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(t: Tosa, self: Value, other: Operand) -> Value:
    """[*S], [*S] -> [*S]; the remainder with the sign of the dividend. Exact while the quotient is below 2^24, and
    meaningless from there on
    """
    x, y, dtype = _operands_of_one_type(t, self, other)
    return converted(t, _whole_quotient(t, x, y, towards_zero=True)[1], dtype)


@lowers(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(t: Tosa, self: Operand, other: Operand) -> Value:
    """[*S], [*S] -> [*S]; the remainder with the sign of the divisor, 0 with the dividend's. Exact while the quotient
    is below 2^24, and meaningless from there on
    """
    x, y, dtype = _operands_of_one_type(t, self, other)
    return converted(t, _whole_quotient(t, x, y, towards_zero=False)[1], dtype)


@lowers(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(t: Tosa, self: Value, other: Operand) -> Value:
    """[*S], [*S] -> [*S]; exact while the quotient of floats is below 2^24, where torch's, of a rounded
    difference, may be one off
    """
    return _divided(t, self, other, "floor")


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode, aten.divide.Tensor_mode)
def div_mode(t: Tosa, self: Value, other: Operand, rounding_mode: str | None) -> Value:
    """[*S], [*S] -> [*S]; rounded down ("floor"), towards zero ("trunc") or not at all"""
    return div(t, self, other) if rounding_mode is None else _divided(t, self, other, rounding_mode)


def _divided(t: Tosa, left: Operand, right: Operand, mode: str) -> Value:
    x, y, dtype = _operands(t, left, right)
    if x.dtype not in FLOATS:
        return converted(t, _integer_quotient(t, x, y, mode == "trunc")[0], dtype)
    infinite = t.equal(t.abs(x), inf)
    x, y = _scaled_alike(t, x, y)
    unbounded = t.mul(x, t.reciprocal(y))  # what division by zero and infinities give
    if mode == "trunc":
        quotient = t.select(infinite, unbounded, truncated(t, rounded_quotient(t, x, y, unbounded)))
    else:  # torch subtracts the remainder, which is NaN
        quotient = t.select(infinite, math.nan, _whole_quotient(t, x, y, towards_zero=False)[0])
    beyond = t.logical_and(t.equal(t.abs(unbounded), inf), t.logical_not(infinite))
    bounded = t.select(t.logical_or(t.equal(y, 0), beyond), unbounded, quotient)
    return converted(t, bounded, dtype)


def _scaled_alike(t: Tosa, x: Value, y: Value) -> tuple[Value, Value]:
    """Both times a power of two where an intermediate result would overflow: 1 / y, or a product near a large x."""
    scale = t.select(t.greater(2.0**-100, t.abs(y)), t.like(2.0**64, y), 1.0)
    large = t.logical_and(t.greater(t.abs(x), 2.0**100), t.greater(t.abs(y), 1.0))
    scale = t.select(large, t.like(2.0**-64, x), scale)
    return t.mul(x, scale), t.mul(y, scale)
