"""Trigonometric and hyperbolic functions and their inverses.

TOSA has SIN, COS, TANH and EXP. The inverse functions are polynomials on a small interval, into which identities bring
every argument. Degrees and coefficients are those of the single-precision functions of the Cephes library (S. Moshier),
whose errors are below 2e-7 of the value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...ir.graph import Value
from ..builder import Tosa
from ..promotion import floating_value, promoted
from ..registry import lowers
from .elementwise import quotient_of, sqrt
from .exponential import log1p_of
from .special_values import is_negative

aten = torch.ops.aten
inf, pi = math.inf, math.pi

ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
"""atan(x) = x + x z P(z), z = x * x, for |x| <= tan(pi / 8)"""
ASIN = (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
"""asin(x) = x + x z P(z), z = x * x, for |x| <= 1/2"""
SINH = (2.03721912945e-4, 8.33028376239e-3, 1.66667160211e-1)
"""sinh(x) = x + x z P(z), z = x * x, for |x| <= 1"""


def odd_polynomial(t: Tosa, x: Value, coefficients: Sequence[float]) -> Value:
    """x + x z P(z) where z = x * x; the coefficient of the highest power comes first."""
    z = t.mul(x, x)
    y: Value | float = coefficients[0]
    for coefficient in coefficients[1:]:
        y = t.add(t.mul(z, y), coefficient)
    return t.add(x, t.mul(t.mul(x, z), y))


def with_sign(t: Tosa, magnitude: Value, x: Value) -> Value:
    """``magnitude`` with the sign of ``x``; where ``x`` is 0 or NaN, ``x`` itself."""
    signed = t.select(t.greater(x, 0), magnitude, t.negate(magnitude))
    return t.select(t.greater(t.abs(x), 0), signed, x)


@lowers(aten.tan.default)
def tan(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; radians"""
    x = floating_value(t, self)
    return t.mul(t.sin(x), t.reciprocal(t.cos(x)))


def atan_of(t: Tosa, x: Value) -> Value:
    """x [*S] -> [*S], the arc tangent.

    From tan(3 pi / 8) on it is that of -1 / x plus pi / 2, from tan(pi / 8) on that of (x - 1) / (x + 1) plus pi / 4.
    """
    size = t.abs(x)
    high, middle = t.greater(size, math.tan(3 * pi / 8)), t.greater(size, math.tan(pi / 8))
    shifted = t.mul(t.sub(size, 1), t.reciprocal(t.add(size, 1)))
    small = t.select(high, t.negate(t.reciprocal(size)), t.select(middle, shifted, size))
    offset = t.select(high, t.like(pi / 2, x), t.select(middle, t.like(pi / 4, x), 0.0))
    return with_sign(t, t.add(offset, odd_polynomial(t, small, ATAN)), x)


@lowers(aten.atan.default, aten.arctan.default)
def atan(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; radians"""
    return atan_of(t, floating_value(t, self))


@lowers(aten.atan2.default, aten.arctan2.default)
def atan2(t: Tosa, self: Value, other: Value) -> Value:
    """y [*S], x [*S] -> [*S]; the angle of (x, y) in radians; zeros have signs"""
    left, right = promoted(t, self, other)
    assert isinstance(left, Value) and isinstance(right, Value)
    y, x = floating_value(t, left), floating_value(t, right)
    both_infinite = t.logical_and(t.equal(t.abs(x), inf), t.equal(t.abs(y), inf))
    both_zero = t.logical_and(t.equal(x, 0), t.equal(y, 0))
    ratio = quotient_of(t, t.abs(y), t.abs(x))
    ratio = t.select(both_infinite, 1.0, t.select(both_zero, 0.0, ratio))
    angle = atan_of(t, ratio)
    full = t.select(is_negative(t, x), t.sub(pi, angle), angle)
    return t.select(is_negative(t, y), t.negate(full), full)


def _half_angle(t: Tosa, size: Value) -> Value:
    """size [*S] in 1/2 .. 1 -> sqrt((1 - size) / 2), whose arc sine is half the arc cosine of ``size``"""
    return sqrt(t, t.mul(t.sub(1, size), 0.5))


@lowers(aten.asin.default, aten.arcsin.default)
def asin(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; radians, NaN beyond -1 .. 1"""
    x = floating_value(t, self)
    size = t.abs(x)
    large = t.greater(size, 0.5)
    arc = odd_polynomial(t, t.select(large, _half_angle(t, size), size), ASIN)
    return with_sign(t, t.select(large, t.sub(pi / 2, t.mul(arc, 2)), arc), x)


@lowers(aten.acos.default, aten.arccos.default)
def acos(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; radians, NaN beyond -1 .. 1"""
    x = floating_value(t, self)
    size = t.abs(x)
    large = t.greater(size, 0.5)
    arc = odd_polynomial(t, t.select(large, _half_angle(t, size), x), ASIN)
    twice = t.mul(arc, 2)
    outer = t.select(t.greater(x, 0), twice, t.sub(pi, twice))
    return t.select(large, outer, t.sub(pi / 2, arc))


@lowers(aten.sinh.default)
def sinh(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; (e - 1 / e) / 2 of e = exp(|x|), halved before it can overflow; a polynomial up to 1"""
    x = floating_value(t, self)
    size = t.abs(x)
    root = t.exp(t.mul(size, 0.5))
    large = t.sub(t.mul(t.mul(root, 0.5), root), t.mul(t.exp(t.negate(size)), 0.5))
    small = odd_polynomial(t, t.minimum(size, 1), SINH)
    return with_sign(t, t.select(t.greater(size, 1), large, small), x)


@lowers(aten.cosh.default)
def cosh(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; (e + 1 / e) / 2 of e = exp(|x|), halved before it can overflow"""
    size = t.abs(floating_value(t, self))
    root = t.exp(t.mul(size, 0.5))
    return t.add(t.mul(t.mul(root, 0.5), root), t.mul(t.exp(t.negate(size)), 0.5))


LARGE = 1e4
"""From here on, 1 + x * x is x * x in fp32, while x * x is still far from overflowing."""


@lowers(aten.asinh.default, aten.arcsinh.default)
def asinh(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; log1p(x + x^2 / (1 + sqrt(1 + x^2))); of a large x, log(x) + log(2)"""
    x = floating_value(t, self)
    size = t.abs(x)
    capped = t.minimum(size, LARGE)
    squared = t.mul(capped, capped)
    rest = t.mul(squared, t.reciprocal(t.add(sqrt(t, t.add(squared, 1)), 1)))
    large = t.add(t.log(size), math.log(2))
    return with_sign(t, t.select(t.greater(size, LARGE), large, log1p_of(t, t.add(capped, rest))), x)


@lowers(aten.acosh.default, aten.arccosh.default)
def acosh(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; log1p(y + sqrt(2 y + y^2)) where y = x - 1; of a large x, log(x) + log(2)"""
    x = floating_value(t, self)
    y = t.sub(t.minimum(x, LARGE), 1)
    small = log1p_of(t, t.add(y, sqrt(t, t.mul(y, t.add(y, 2)))))
    inside = t.select(t.greater(1, x), math.nan, small)
    return t.select(t.greater(x, LARGE), t.add(t.log(x), math.log(2)), inside)


@lowers(aten.atanh.default, aten.arctanh.default)
def atanh(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; log1p(2 x / (1 - x)) / 2 of |x|, with the sign of x"""
    x = floating_value(t, self)
    size = t.abs(x)
    half = t.mul(log1p_of(t, t.mul(t.mul(size, 2), t.reciprocal(t.sub(1, size)))), 0.5)
    return with_sign(t, half, x)
