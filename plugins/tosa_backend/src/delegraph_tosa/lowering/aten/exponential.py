"""Exponentials and logarithms that keep their digits where the argument or the result is near 0."""

from __future__ import annotations

import math

import torch

from ...ir.graph import Value
from ..builder import Operand, Tosa
from ..promotion import floating_value, promoted
from ..registry import lowers

aten = torch.ops.aten
inf = math.inf

LN2, LN10 = math.log(2), math.log(10)
LN2_HIGH = 0xB17 / (1 << 12)
"""The first 12 bits of log(2). Their product with a whole number below 2^12 is exact in fp32."""


TAYLOR = [1 / math.factorial(k) for k in range(8, 0, -1)]
"""exp(x) - 1 = x (1 + x / 2! + x^2 / 3! + ...), to 2e-7 of the value for |x| <= 1/2"""


def expm1_of(t: Tosa, x: Value) -> Value:
    """exp(x) - 1. Near 0 the difference would lose digits, so its Taylor series is taken there.

    It could also be had from TANH, but TOSA does not promise that to be exact enough near 0.
    """
    small = t.clamp(x, -0.5, 0.5)
    series: Value | float = TAYLOR[0]
    for coefficient in TAYLOR[1:]:
        series = t.add(t.mul(small, series), coefficient)
    return t.select(t.greater(t.abs(x), 0.5), t.sub(t.exp(x), 1), t.mul(small, series))


def log1p_of(t: Tosa, x: Value) -> Value:
    """log(1 + x), as log(u) * x / (u - 1), where u is 1 + x rounded to fp32: the error of u cancels (Kahan)."""
    u = t.add(x, 1)
    rest = t.sub(u, 1)
    corrected = t.mul(t.log(u), t.mul(x, t.reciprocal(rest)))
    unrounded = t.select(t.equal(rest, 0), x, corrected)
    return t.select(t.equal(u, inf), u, t.select(t.equal(u, 0), t.log(u), unrounded))


@lowers(aten.exp2.default, aten.special_exp2.default)
def exp2(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; 2 to the power of x

    x is split into its whole part and the rest. EXP of the whole part times the first bits of log(2), a product that is
    exact, is multiplied by EXP of what remains. POW would be off by 2e-6 at 2^80 (``power``).
    """
    x = t.clamp(floating_value(t, self), -256, 256)
    whole = t.floor(x)
    rest = t.add(t.mul(whole, LN2 - LN2_HIGH), t.mul(t.sub(x, whole), LN2))
    return t.mul(t.exp(t.mul(whole, LN2_HIGH)), t.exp(rest))


@lowers(aten.expm1.default, aten.special_expm1.default)
def expm1(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]"""
    return expm1_of(t, floating_value(t, self))


@lowers(aten.log2.default)
def log2(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]"""
    return t.mul(t.log(floating_value(t, self)), 1 / LN2)


@lowers(aten.log10.default)
def log10(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]"""
    return t.mul(t.log(floating_value(t, self)), 1 / LN10)


@lowers(aten.log1p.default, aten.special_log1p.default)
def log1p(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]"""
    return log1p_of(t, floating_value(t, self))


@lowers(aten.logit.default, aten.special_logit.default)
def logit(t: Tosa, self: Value, eps: float | None) -> Value:
    """[*S] -> [*S]; log(x / (1 - x)), of x clamped to eps .. 1 - eps if there is an eps"""
    x = floating_value(t, self)
    x = x if eps is None else t.clamp(x, eps, 1 - eps)
    return t.log(t.mul(x, t.reciprocal(t.sub(1, x))))


@lowers(aten.logaddexp.default)
def logaddexp(t: Tosa, self: Value, other: Value) -> Value:
    """[*S], [*S] -> [*S]; log(exp(x) + exp(y)): the larger one plus log1p of what the smaller one adds"""
    left, right = promoted(t, self, other)
    larger = t.maximum(left, right)
    distance = t.abs(t.sub(left, right))
    sum_ = t.add(larger, log1p_of(t, t.exp(t.negate(distance))))
    return t.select(t.equal(left, right), t.add(larger, LN2), sum_)


@lowers(aten.xlogy.Tensor, aten.xlogy.Scalar_Other, aten.xlogy.Scalar_Self)
def xlogy(t: Tosa, self: Operand, other: Operand) -> Value:
    """[*S], [*S] -> [*S]; x log(y), which is 0 where x is 0 and y a number"""
    left, right = promoted(t, self, other)
    x, y = _value(t, left, right), _value(t, right, left)
    product = t.mul(x, t.log(y))
    return t.select(t.logical_and(t.equal(x, 0), t.equal(y, y)), 0, product)


def _value(t: Tosa, operand: Operand, other: Operand) -> Value:
    """``operand`` as a floating-point value; a number becomes a constant beside ``other``."""
    if isinstance(operand, Value):
        return floating_value(t, operand)
    assert isinstance(other, Value)
    return t.like(operand, floating_value(t, other))
