"""Exponentials and logarithms that keep their digits near 0."""

from __future__ import annotations

import math

import torch

from ...ir.graph import Value
from ..builder import Operand, Tosa
from ..builder.polynomials import polynomial
from ..promotion import floating_value, promoted
from ..registry import lowers

aten = torch.ops.aten
inf = math.inf

LN2 = math.log(2)
LN10 = math.log(10)
LN2_HIGH = 0xB17 / (1 << 12)
"""The first 12 bits of log(2).

Their product with a whole number below 2^12 is exact in fp32.
"""


TAYLOR = [1 / math.factorial(k) for k in range(8, 0, -1)]
"""exp(x) - 1 = x (1 + x / 2! + x^2 / 3! + ...), to 2e-7 of the value for |x| <= 1/2"""


def expm1_of(t: Tosa, x: Value) -> Value:
    """Return exp(x) - 1: the difference for |x| > 1/2, else a Taylor series.

    For small x, the difference would lose digits. A formula with TANH would too: TOSA
    does not bound the relative error of TANH near 0.
    """
    small = t.clamp(x, -0.5, 0.5)
    series = t.mul(small, polynomial(t, small, TAYLOR))
    is_large = t.greater(t.abs(x), 0.5)
    difference = t.sub(t.exp(x), 1)
    return t.select(is_large, difference, series)


def log1p_of(t: Tosa, x: Value) -> Value:
    """Return log(1 + x) as log(u) * x / (u - 1), where u is 1 + x rounded (Kahan).

    For a small x, u has few digits of x. The quotient x / (u - 1) is near 1 and
    corrects this. Where u is 1, 0 or inf, the formula would give NaN: the result is x,
    log(u) or inf.
    """
    u = t.add(x, 1)
    difference = t.sub(u, 1)
    log_u = t.log(u)
    correction = t.mul(x, t.reciprocal(difference))
    y = t.mul(log_u, correction)
    y = t.select(t.equal(difference, 0), x, y)
    is_infinite = t.equal(u, inf)
    y = t.select(t.equal(u, 0), log_u, y)
    return t.select(is_infinite, u, y)


@lowers(aten.exp2.default, aten.special_exp2.default)
def exp2(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; 2^x = exp(w * LN2_HIGH) * exp(w * (LN2 - LN2_HIGH) + (x - w) *
    LN2), where w = floor(x)

    The product w * LN2_HIGH is exact, so the large exponent has no rounding error. POW
    would be off by 2e-6 at 2^80 (``power``).
    """
    # 2^-256 is 0 in fp32, and 2^256 is inf: beyond these limits nothing changes
    x = t.clamp(floating_value(t, self), -256, 256)
    w = t.floor(x)
    rest_of_whole = t.mul(w, LN2 - LN2_HIGH)
    fraction = t.mul(t.sub(x, w), LN2)
    small_exponent = t.add(rest_of_whole, fraction)
    large_exponent = t.mul(w, LN2_HIGH)
    return t.mul(t.exp(large_exponent), t.exp(small_exponent))


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
    """[*S] -> [*S]; log(x / (1 - x)); unless ``eps`` is None, x is clamped to eps .. 1
    - eps first
    """
    x = floating_value(t, self)
    if eps is not None:
        x = t.clamp(x, eps, 1 - eps)
    odds = t.mul(x, t.reciprocal(t.sub(1, x)))
    return t.log(odds)


@lowers(aten.logaddexp.default)
def logaddexp(t: Tosa, self: Value, other: Value) -> Value:
    """[*S], [*S] -> [*S]; log(exp(x) + exp(y)) = max(x, y) + log1p(exp(-|x - y|))"""
    left, right = promoted(t, self, other)
    larger = t.maximum(left, right)
    distance = t.abs(t.sub(left, right))
    ratio = t.exp(t.negate(distance))
    result = t.add(larger, log1p_of(t, ratio))
    # the distance of two equal infinities is NaN
    are_equal = t.equal(left, right)
    return t.select(are_equal, t.add(larger, LN2), result)


@lowers(aten.xlogy.Tensor, aten.xlogy.Scalar_Other, aten.xlogy.Scalar_Self)
def xlogy(t: Tosa, self: Operand, other: Operand) -> Value:
    """[*S], [*S] -> [*S]; x log(y), and 0 where x is 0 and y is not NaN"""
    left, right = promoted(t, self, other)
    x = _float_value(t, left, right)
    y = _float_value(t, right, left)
    product = t.mul(x, t.log(y))
    is_zero = t.equal(x, 0)
    is_zero_of_number = t.logical_and(is_zero, t.equal(y, y))
    return t.select(is_zero_of_number, 0, product)


def _float_value(t: Tosa, operand: Operand, other: Operand) -> Value:
    """Return ``operand`` as a tensor of floats.

    A Python number becomes a constant of the float type of ``other``, which is a
    tensor.
    """
    if isinstance(operand, Value):
        return floating_value(t, operand)
    assert isinstance(other, Value)
    return t.like(operand, floating_value(t, other))
