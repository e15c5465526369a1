"""Trigonometric and hyperbolic functions and their inverses.

TOSA has SIN, COS, TANH and EXP. An inverse function is a polynomial on a small
interval; identities map every argument to this interval. Degrees and coefficients are
those of the single-precision functions of the Cephes library (S. Moshier). Their errors
are below 2e-7 of the value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...ir.graph import Value
from ..builder import Tosa
from ..builder.polynomials import polynomial
from ..promotion import floating_value, promoted
from ..registry import lowers
from .elementwise import quotient_of, sqrt
from .exponential import log1p_of
from .special_values import is_negative

aten = torch.ops.aten
inf = math.inf
pi = math.pi

ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
"""atan(x) = x + x z P(z), z = x * x, for |x| <= tan(pi / 8)"""
ASIN = (
    4.2163199048e-2,
    2.4181311049e-2,
    4.5470025998e-2,
    7.4953002686e-2,
    1.6666752422e-1,
)
"""asin(x) = x + x z P(z), z = x * x, for |x| <= 1/2"""
SINH = (2.03721912945e-4, 8.33028376239e-3, 1.66667160211e-1)
"""sinh(x) = x + x z P(z), z = x * x, for |x| <= 1"""


def odd_polynomial(t: Tosa, x: Value, coefficients: Sequence[float]) -> Value:
    """Return x + x z P(z) where z = x * x.

    The coefficient of the highest power comes first.
    """
    z = t.mul(x, x)
    p = polynomial(t, z, coefficients)
    return t.add(x, t.mul(t.mul(x, z), p))


def with_sign(t: Tosa, magnitude: Value, x: Value) -> Value:
    """Return ``magnitude`` with the sign of ``x``; where x is 0 or NaN, return x."""
    signed = t.select(t.greater(x, 0), magnitude, t.negate(magnitude))
    return t.select(t.greater(t.abs(x), 0), signed, x)


@lowers(aten.tan.default)
def tan(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; radians"""
    x = floating_value(t, self)
    sine = t.sin(x)
    return t.mul(sine, t.reciprocal(t.cos(x)))


def atan_of(t: Tosa, x: Value) -> Value:
    """x [*S] -> [*S], the arc tangent.

    The polynomial ATAN is for m = |x| up to tan(pi / 8). Two identities map larger m.
    Up to tan(3 pi / 8): atan(m) = pi / 4 + atan((m - 1) / (m + 1)). Above: atan(m) = pi
    / 2 + atan(-1 / m).
    """
    m = t.abs(x)
    is_high = t.greater(m, math.tan(3 * pi / 8))
    is_middle = t.greater(m, math.tan(pi / 8))
    of_middle = t.mul(t.sub(m, 1), t.reciprocal(t.add(m, 1)))
    of_high = t.negate(t.reciprocal(m))
    argument = t.select(is_middle, of_middle, m)
    argument = t.select(is_high, of_high, argument)
    half_pi = t.like(pi / 2, x)
    offset = t.select(is_middle, t.like(pi / 4, x), 0.0)
    offset = t.select(is_high, half_pi, offset)
    magnitude = t.add(offset, odd_polynomial(t, argument, ATAN))
    return with_sign(t, magnitude, x)


@lowers(aten.atan.default, aten.arctan.default)
def atan(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; radians"""
    return atan_of(t, floating_value(t, self))


@lowers(aten.atan2.default, aten.arctan2.default)
def atan2(t: Tosa, self: Value, other: Value) -> Value:
    """y [*S], x [*S] -> [*S]; the angle of (x, y) in radians; 0.0 and -0.0 differ, as
    in torch
    """
    left, right = promoted(t, self, other)
    assert isinstance(left, Value)
    assert isinstance(right, Value)
    y = floating_value(t, left)
    x = floating_value(t, right)
    x_is_infinite = t.equal(t.abs(x), inf)
    both_infinite = t.logical_and(x_is_infinite, t.equal(t.abs(y), inf))
    both_zero = t.logical_and(t.equal(x, 0), t.equal(y, 0))
    ratio = quotient_of(t, t.abs(y), t.abs(x))
    # inf / inf and 0 / 0 would be NaN
    ratio = t.select(both_zero, 0.0, ratio)
    ratio = t.select(both_infinite, 1.0, ratio)
    # the angle of (|x|, |y|), then of (x, |y|), then of (x, y)
    angle = atan_of(t, ratio)
    angle = t.select(is_negative(t, x), t.sub(pi, angle), angle)
    return t.select(is_negative(t, y), t.negate(angle), angle)


def _half_angle(t: Tosa, m: Value) -> Value:
    """m [*S] in 1/2 .. 1 -> sqrt((1 - m) / 2), so that acos(m) = 2 asin(result)"""
    return sqrt(t, t.mul(t.sub(1, m), 0.5))


@lowers(aten.asin.default, aten.arcsin.default)
def asin(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; radians; NaN beyond -1 .. 1"""
    x = floating_value(t, self)
    m = t.abs(x)
    is_large = t.greater(m, 0.5)
    argument = t.select(is_large, _half_angle(t, m), m)
    arc = odd_polynomial(t, argument, ASIN)
    # above 1/2: asin(m) = pi / 2 - acos(m) = pi / 2 - 2 arc
    of_large = t.sub(pi / 2, t.mul(arc, 2))
    magnitude = t.select(is_large, of_large, arc)
    return with_sign(t, magnitude, x)


@lowers(aten.acos.default, aten.arccos.default)
def acos(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; radians; NaN beyond -1 .. 1"""
    x = floating_value(t, self)
    m = t.abs(x)
    is_large = t.greater(m, 0.5)
    argument = t.select(is_large, _half_angle(t, m), x)
    arc = odd_polynomial(t, argument, ASIN)
    # above 1/2: acos(m) = 2 arc, and acos(-m) = pi - acos(m)
    twice = t.mul(arc, 2)
    of_large = t.select(t.greater(x, 0), twice, t.sub(pi, twice))
    # up to 1/2: acos(x) = pi / 2 - asin(x)
    of_small = t.sub(pi / 2, arc)
    return t.select(is_large, of_large, of_small)


def _half_exponentials(t: Tosa, m: Value) -> tuple[Value, Value]:
    """Return exp(m) / 2 and exp(-m) / 2, for m [*S] >= 0."""
    # exp(m) itself could overflow where exp(m) / 2 = exp(m / 2) / 2 * exp(m / 2) does
    # not
    root = t.exp(t.mul(m, 0.5))
    growing = t.mul(t.mul(root, 0.5), root)
    falling = t.mul(t.exp(t.negate(m)), 0.5)
    return growing, falling


@lowers(aten.sinh.default)
def sinh(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; (exp(|x|) - exp(-|x|)) / 2 with the sign of x; a polynomial up to 1"""
    x = floating_value(t, self)
    m = t.abs(x)
    growing, falling = _half_exponentials(t, m)
    large = t.sub(growing, falling)
    small = odd_polynomial(t, t.minimum(m, 1), SINH)
    magnitude = t.select(t.greater(m, 1), large, small)
    return with_sign(t, magnitude, x)


@lowers(aten.cosh.default)
def cosh(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; (exp(|x|) + exp(-|x|)) / 2"""
    m = t.abs(floating_value(t, self))
    growing, falling = _half_exponentials(t, m)
    return t.add(growing, falling)


LARGE = 1e4
"""Above, asinh and acosh use log(x) + log(2): 1 + x * x rounds to x * x in fp32.

x * x may overflow there.
"""


@lowers(aten.asinh.default, aten.arcsinh.default)
def asinh(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; with m = |x|: log1p(m + m^2 / (1 + sqrt(1 + m^2))), or log(m) +
    log(2) for large m; sign of x
    """
    x = floating_value(t, self)
    m = t.abs(x)
    capped = t.minimum(m, LARGE)
    squared = t.mul(capped, capped)
    divisor = t.add(sqrt(t, t.add(squared, 1)), 1)
    quotient = t.mul(squared, t.reciprocal(divisor))
    of_large = t.add(t.log(m), math.log(2))
    is_large = t.greater(m, LARGE)
    of_small = log1p_of(t, t.add(capped, quotient))
    magnitude = t.select(is_large, of_large, of_small)
    return with_sign(t, magnitude, x)


@lowers(aten.acosh.default, aten.arccosh.default)
def acosh(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; log1p(y + sqrt(2 y + y^2)) where y = x - 1, or log(x) + log(2) for
    large x; NaN below 1
    """
    x = floating_value(t, self)
    y = t.sub(t.minimum(x, LARGE), 1)
    root = sqrt(t, t.mul(y, t.add(y, 2)))
    of_small = log1p_of(t, t.add(y, root))
    of_small = t.select(t.greater(1, x), math.nan, of_small)
    is_large = t.greater(x, LARGE)
    of_large = t.add(t.log(x), math.log(2))
    return t.select(is_large, of_large, of_small)


@lowers(aten.atanh.default, aten.arctanh.default)
def atanh(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; log1p(2 m / (1 - m)) / 2 where m = |x|, with the sign of x"""
    x = floating_value(t, self)
    m = t.abs(x)
    ratio = t.mul(t.mul(m, 2), t.reciprocal(t.sub(1, m)))
    magnitude = t.mul(log1p_of(t, ratio), 0.5)
    return with_sign(t, magnitude, x)
