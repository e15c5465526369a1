"""Rounding to whole numbers, and the quotients and remainders that need it.

Floats are divided by RECIPROCAL and MUL. The result can lie on the wrong side of a
whole number: 6 / 3 may be 1.9999999, which rounded down is 1. So a quotient is first
rounded to the nearest whole number. Then it is corrected by its remainder, x - quotient
* y: if the remainder has the wrong sign, the quotient is changed by 1.

The remainder has to be exact. So the divisor is split into two halves of 12 bits
(``division``), and the quotient into two digits of 12 bits. Products of 12 bits by 12
bits are exact in fp32. Two digits are enough for quotients below 2^24.
Quotients of fp32 numbers go up to 2^277, which would take 24 digits of eight operators
each.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ...ir.graph import Value
from ...ir.types import FLOATS, DType
from ..builder import Operand, Tosa
from ..builder.division import halves, rounded_quotient
from ..promotion import converted, promoted, truncated
from ..registry import lowers
from .elementwise import div
from .int32_conditions import has_comparisons, negative, positive

aten = torch.ops.aten
inf = math.inf
DIGIT = 1 << 12
"""The base of a quotient's digits: 2^12."""


def nearest(t: Tosa, x: Value) -> Value:
    """x [*S] -> [*S], rounded to the nearest whole number, ties to even.

    A zero keeps the sign of x.
    """
    low = t.floor(x)
    rest = t.sub(x, low)
    half = t.mul(low, 0.5)
    is_odd = t.greater(half, t.floor(half))
    is_above_half = t.greater(rest, 0.5)
    is_odd_tie = t.logical_and(t.equal(rest, 0.5), is_odd)
    rounds_up = t.logical_or(is_above_half, is_odd_tie)
    rounded = t.select(rounds_up, t.add(low, 1), low)
    signed_zero = t.mul(x, 0)
    return t.select(t.equal(rounded, 0), signed_zero, rounded)


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
    """[*S] -> [*S]; multiplied by 10^decimals, rounded, and divided again, as torch
    does
    """
    if self.dtype not in FLOATS or decimals == 0:
        t.refuse_unless(
            decimals >= 0,
            f"rounding {self.dtype} to {decimals} decimals is not lowered",
        )
        return round(t, self)
    power = 10.0 ** abs(decimals)
    if decimals > 0:
        whole = nearest(t, t.mul(self, power))
        return t.mul(whole, 1 / power)
    whole = nearest(t, t.mul(self, 1 / power))
    return t.mul(whole, power)


class _Operands(NamedTuple):
    """The operands of a division, in the type in which it is computed.

    ``common_type`` is the type to which torch promotes them, and that of the result.
    """

    x: Value
    y: Value
    common_type: DType


class _Division(NamedTuple):
    """A whole quotient of x and y, and the remainder x - quotient * y."""

    quotient: Value
    remainder: Value


def _operands(t: Tosa, left: Operand, right: Operand) -> _Operands:
    """Return both operands of a division in fp32, int32 or int64."""
    a, b = promoted(t, left, right)
    x = a if isinstance(a, Value) else t.like(a, b)  # type: ignore[arg-type]
    y = b if isinstance(b, Value) else t.like(b, x)
    t.refuse_unless(
        x.dtype is not DType.BOOL,
        "a remainder or a quotient of truth values is not lowered",
    )
    wide = DType.FP32 if x.dtype in FLOATS else DType.INT32
    if x.dtype is DType.INT64:
        wide = DType.INT64
    return _Operands(converted(t, x, wide), converted(t, y, wide), x.dtype)


def _operands_of_one_type(t: Tosa, left: Operand, right: Operand) -> _Operands:
    """Return ``_operands``, with a number rounded to the tensor's type.

    For a bf16 tensor, torch computes ``x % 0.3`` with 0.3 rounded to bf16.
    """
    operands = _operands(t, left, right)
    # The constant for the number may have set this flag. It makes the builder repeat the
    # rule in fp32 with the exact number, but torch uses the rounded one.
    t.rounded_number = False
    return operands


def _integer_division(t: Tosa, x: Value, y: Value, towards_zero: bool) -> _Division:
    """Divide integers; the quotient is rounded towards zero or down."""
    quotient = t.intdiv(x, y)
    if x.dtype is not DType.INT64 or t.has_int64:
        return _integer_division_by_quotient(t, x, y, quotient, towards_zero)
    # x, y and the quotient are int32 in the graph. All results fit too, because
    # |quotient * y| <= |x|, but range analysis cannot prove it
    x = t.narrowed(x)
    y = t.narrowed(y)
    narrow = _integer_division_by_quotient(t, x, y, t.narrowed(quotient), towards_zero)
    return _Division(t.widened(narrow.quotient), t.widened(narrow.remainder))


def _integer_division_by_quotient(
    t: Tosa, x: Value, y: Value, quotient: Value, towards_zero: bool
) -> _Division:
    """Return the division of integers, from the ``quotient`` that INTDIV returns.

    INTDIV rounds towards zero. The quotient rounded down is one less if the signs of
    remainder and y differ: -7 / 2 is -3 with remainder -1, rounded down -4 with
    remainder 1.
    """
    rest = t.sub(x, t.mul(quotient, y))
    if towards_zero:
        return _Division(quotient, rest)
    if x.dtype is DType.INT32 and not has_comparisons(t):
        # 1 where the signs differ, else 0
        y_is_negative = negative(t, y)
        only_rest_is_negative = t.mul(negative(t, rest), t.sub(1, y_is_negative))
        only_y_is_negative = t.mul(positive(t, rest), y_is_negative)
        one = t.add(only_rest_is_negative, only_y_is_negative)
        return _Division(t.sub(quotient, one), t.add(rest, t.mul(y, one)))
    signs_differ = t.logical_xor(t.greater(0, rest), t.greater(0, y))
    is_inexact = t.logical_not(t.equal(rest, 0))
    is_one_less = t.logical_and(is_inexact, signs_differ)
    # select the addend, not the sum: where it is not used, the sum may be
    # more than 32 bits
    one = t.select(is_one_less, t.like(1, y), t.like(0, y))
    added = t.select(is_one_less, y, t.like(0, y))
    return _Division(t.sub(quotient, one), t.add(rest, added))


def _whole_division(t: Tosa, x: Value, y: Value, towards_zero: bool) -> _Division:
    """Divide x by y; the quotient is a whole number, rounded down or towards zero.

    The remainder has the sign of y if the quotient is rounded down, else that of x. A
    remainder of 0 has the sign of x in both cases.
    """
    if x.dtype not in FLOATS:
        return _integer_division(t, x, y, towards_zero)
    nearest_quotient, rest = _nearest_division(t, x, y)
    # a remainder that is not 0 must have the sign of x or of y
    sign_source = x if towards_zero else y
    signs_differ = t.logical_xor(t.greater(0.0, rest), t.greater(0.0, sign_source))
    is_wrong = t.logical_and(signs_differ, t.logical_not(t.equal(rest, 0)))
    # a wrong quotient is one too large when it is rounded down, or else one too far
    # from zero; its sign is that of x * y
    step: Operand = 1.0
    if towards_zero:
        is_negative = t.logical_xor(t.greater(0.0, x), t.greater(0.0, y))
        step = t.select(is_negative, t.like(-1, x), 1.0)
    corrected = t.add(rest, t.mul(y, step))
    is_exact = t.equal(rest, 0)
    signed_zero = t.mul(x, 0.0)
    remainder = t.select(is_wrong, corrected, rest)
    remainder = t.select(is_exact, signed_zero, remainder)
    quotient = t.select(is_wrong, t.sub(nearest_quotient, step), nearest_quotient)
    return _Division(quotient, remainder)


def _nearest_division(t: Tosa, x: Value, y: Value) -> _Division:
    """Divide floats; the quotient is rounded to the nearest whole number.

    The quotient is the sum of two digits, and y the sum of two halves (see the module).
    """
    upper, lower = halves(t, y)
    inverse = t.reciprocal(y)
    high = _high_digit(t, x, y, inverse)
    # where the high digit is 0, nothing is subtracted from x or added to the low digit:
    # -0.0 keeps its sign
    no_high = t.equal(high, 0)
    rest = t.select(no_high, x, _minus_product(t, x, high, upper, lower))
    low = nearest(t, t.mul(rest, inverse))
    quotient = t.select(no_high, low, t.add(high, low))
    return _Division(quotient, _minus_product(t, rest, low, upper, lower))


def _minus_product(
    t: Tosa, x: Value, digit: Value, upper: Value, lower: Value
) -> Value:
    """Return x - digit * (upper + lower) by two products that are exact in fp32."""
    rest = t.sub(x, t.mul(digit, upper))
    return t.sub(rest, t.mul(digit, lower))


def _high_digit(t: Tosa, x: Value, y: Value, inverse: Value) -> Value:
    """Return the multiple of DIGIT nearest to x / y, from ``inverse`` = 1 / y.

    It is 0 for |y| above 2^110, where its product with y could overflow.
    """
    is_huge = t.greater(t.abs(y), 2.0**110)
    step = t.select(is_huge, t.like(0.0, y), t.mul(inverse, 1 / DIGIT))
    digits = t.floor(t.add(t.mul(x, step), 0.5))
    return t.mul(digits, DIGIT)


@lowers(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(t: Tosa, self: Value, other: Operand) -> Value:
    """[*S], [*S] -> [*S]; the remainder with the sign of the dividend; exact for
    quotients below 2^24, else wrong
    """
    x, y, common_type = _operands_of_one_type(t, self, other)
    division = _whole_division(t, x, y, towards_zero=True)
    return converted(t, division.remainder, common_type)


@lowers(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(t: Tosa, self: Operand, other: Operand) -> Value:
    """[*S], [*S] -> [*S]; the remainder with the sign of the divisor (0 has the
    dividend's); exact for quotients below 2^24, else wrong
    """
    x, y, common_type = _operands_of_one_type(t, self, other)
    division = _whole_division(t, x, y, towards_zero=False)
    return converted(t, division.remainder, common_type)


@lowers(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(t: Tosa, self: Value, other: Operand) -> Value:
    """[*S], [*S] -> [*S]; the quotient, rounded down; exact for floats while it is
    below 2^24, where torch's may be one off
    """
    return _rounded_division(t, self, other, "floor")


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode, aten.divide.Tensor_mode)
def div_mode(t: Tosa, self: Value, other: Operand, rounding_mode: str | None) -> Value:
    """[*S], [*S] -> [*S]; rounded down ("floor"), towards zero ("trunc") or not at all"""
    if rounding_mode is None:
        return div(t, self, other)
    return _rounded_division(t, self, other, rounding_mode)


def _rounded_division(t: Tosa, left: Operand, right: Operand, mode: str) -> Value:
    """Return left / right, rounded down (``mode`` "floor") or towards zero ("trunc").

    Special cases are those of torch: where y is 0, the quotient is infinite or NaN;
    where x is infinite, "trunc" gives the infinite quotient, and "floor" gives NaN.
    """
    x, y, common_type = _operands(t, left, right)
    towards_zero = mode == "trunc"
    if x.dtype not in FLOATS:
        division = _integer_division(t, x, y, towards_zero)
        return converted(t, division.quotient, common_type)
    x_is_infinite = t.equal(t.abs(x), inf)
    x, y = _both_scaled(t, x, y)
    # the quotient before it is rounded; it is the result where y is 0 and where it
    # overflows
    plain = t.mul(x, t.reciprocal(y))
    if towards_zero:
        whole = truncated(t, rounded_quotient(t, x, y, plain))
        quotient = t.select(x_is_infinite, plain, whole)
    else:
        division = _whole_division(t, x, y, towards_zero=False)
        quotient = t.select(x_is_infinite, math.nan, division.quotient)
    is_infinite = t.equal(t.abs(plain), inf)
    overflows = t.logical_and(is_infinite, t.logical_not(x_is_infinite))
    is_plain = t.logical_or(t.equal(y, 0), overflows)
    return converted(t, t.select(is_plain, plain, quotient), common_type)


def _both_scaled(t: Tosa, x: Value, y: Value) -> tuple[Value, Value]:
    """Return x and y multiplied by a power of two, which keeps their quotient.

    Without it, 1 / y would overflow for |y| below 2**-100. So would products near x for
    |x| above 2**100.
    """
    y_is_tiny = t.greater(2.0**-100, t.abs(y))
    scale = t.select(y_is_tiny, t.like(2.0**64, y), 1.0)
    x_is_huge = t.greater(t.abs(x), 2.0**100)
    both_are_large = t.logical_and(x_is_huge, t.greater(t.abs(y), 1.0))
    scale = t.select(both_are_large, t.like(2.0**-64, x), scale)
    return t.mul(x, scale), t.mul(y, scale)
