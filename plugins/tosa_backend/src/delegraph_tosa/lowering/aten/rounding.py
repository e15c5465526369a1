"""Rounding to whole numbers, and the quotients and remainders that rest on it.

TOSA divides floats by RECIPROCAL and MUL, whose result can lie on the wrong side of a whole number. So a quotient is
rounded to the nearest whole number, which that cannot change but in ties, and corrected by what it leaves. What it
leaves is computed with the divisor in two halves of 12 bits (Dekker's splitting), so that products with quotients below
4096 are exact.
"""

from __future__ import annotations

import math

import torch

from ...ir.graph import Value
from ...ir.types import FLOATS, DType
from ..builder import Operand, Tosa
from ..promotion import converted, promoted, truncated
from ..registry import lowers
from .elementwise import div

aten = torch.ops.aten
inf = math.inf


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


def _operands(t: Tosa, left: Operand, right: Operand) -> tuple[Value, Value]:
    """Both in fp32, as values; only floats are divided here."""
    a, b = promoted(t, left, right)
    x = a if isinstance(a, Value) else t.like(a, b)  # type: ignore[arg-type]
    y = b if isinstance(b, Value) else t.like(b, x)
    t.require(x.dtype in FLOATS, f"a remainder or a rounded quotient of {x.dtype} is not lowered")
    return converted(t, x, DType.FP32), converted(t, y, DType.FP32)


def _type(t: Tosa, left: Operand, right: Operand) -> DType:
    """The common type of two operands."""
    return next(v.dtype for v in promoted(t, left, right) if isinstance(v, Value))


def _halves(t: Tosa, y: Value) -> tuple[Value, Value]:
    """y as the sum of its upper 12 bits and the rest; of a large y, whose upper half would overflow, y and 0."""
    spread = t.mul(y, 4097)
    upper = t.sub(spread, t.sub(spread, y))
    upper = t.select(t.greater(t.abs(y), 2.0**110), y, upper)
    return upper, t.sub(y, upper)


def _whole_quotient(t: Tosa, x: Value, y: Value, towards_zero: bool) -> tuple[Value, Value]:
    """(quotient, remainder) of x / y, rounded down or towards zero: the remainder has the sign of y, or that of x.

    The nearest quotient leaves a remainder of either sign; where it is not the wanted one, the quotient was one too
    far from where it is rounded to.
    """
    quotient = nearest(t, t.mul(x, t.reciprocal(y)))
    upper, lower = _halves(t, y)
    rest = t.sub(t.sub(x, t.mul(quotient, upper)), t.mul(quotient, lower))
    wanted = x if towards_zero else y
    wrong = t.logical_xor(t.greater(0.0, rest), t.greater(0.0, wanted))
    wrong = t.logical_and(wrong, t.logical_not(t.equal(rest, 0)))
    step = t.select(t.logical_xor(t.greater(0.0, x), t.greater(0.0, y)), t.like(-1, x), 1.0) if towards_zero else 1.0
    moved = t.add(rest, t.mul(y, step))
    return t.select(wrong, t.sub(quotient, step), quotient), t.select(wrong, moved, rest)


@lowers(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(t: Tosa, self: Value, other: Operand) -> Value:
    """[*S], [*S] -> [*S]; the remainder with the sign of the dividend. Exact while the quotient is below 4096"""
    rest = _whole_quotient(t, *_operands(t, self, other), towards_zero=True)[1]
    return converted(t, rest, _type(t, self, other))


@lowers(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(t: Tosa, self: Operand, other: Operand) -> Value:
    """[*S], [*S] -> [*S]; the remainder with the sign of the divisor. Exact while the quotient is below 4096"""
    rest = _whole_quotient(t, *_operands(t, self, other), towards_zero=False)[1]
    return converted(t, rest, _type(t, self, other))


@lowers(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(t: Tosa, self: Value, other: Operand) -> Value:
    """[*S], [*S] -> [*S]"""
    return _divided(t, self, other, "floor")


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode, aten.divide.Tensor_mode)
def div_mode(t: Tosa, self: Value, other: Operand, rounding_mode: str | None) -> Value:
    """[*S], [*S] -> [*S]; rounded down ("floor"), towards zero ("trunc") or not at all"""
    return div(t, self, other) if rounding_mode is None else _divided(t, self, other, rounding_mode)


def _divided(t: Tosa, left: Operand, right: Operand, mode: str) -> Value:
    x, y = _operands(t, left, right)
    unbounded = t.mul(x, t.reciprocal(y))  # what division by zero and infinities give
    if mode == "trunc":
        quotient = truncated(t, _rounded_quotient(t, x, y, unbounded))
    else:
        quotient, _ = _whole_quotient(t, x, y, towards_zero=False)
    bounded = t.select(t.logical_or(t.equal(y, 0), t.equal(t.abs(x), inf)), unbounded, quotient)
    return converted(t, bounded, _type(t, left, right))


def _rounded_quotient(t: Tosa, x: Value, y: Value, estimate: Value) -> Value:
    """x / y as a division rounds it, from an estimate: torch truncates that, which may have reached a whole number."""
    (high, low), (upper, lower) = _halves(t, estimate), _halves(t, y)
    rest = t.sub(t.sub(t.sub(x, t.mul(high, upper)), t.mul(high, lower)), t.mul(low, upper))
    return t.add(estimate, t.mul(t.sub(rest, t.mul(low, lower)), t.reciprocal(y)))
