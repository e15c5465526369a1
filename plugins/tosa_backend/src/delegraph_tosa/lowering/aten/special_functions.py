"""Functions without a TOSA operator: erfinv, erfc, i0, hypot, angle and others.

``exponential`` has exponentials and logarithms, also those of torch.special.
"""

from __future__ import annotations

import math

import torch

from ...ir.graph import Value
from ..builder import Tosa
from ..builder.polynomials import polynomial
from ..promotion import floating_value, promoted
from ..registry import lowers
from .elementwise import quotient_of, sqrt
from .exponential import LN2, log1p_of

aten = torch.ops.aten
inf = math.inf

ERFINV_CENTRE = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
ERFINV_TAIL = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)
"""erfinv(x) = x P(w - 2.5) for w = -log(1 - x^2) < 5, else x P(sqrt(w) - 3)

By M. Giles, 2010. The error is 4e-7.
"""

ERFC_BORDER = 0.5
ERFC_TAIL = (
    0.106993519,
    -0.593489733,
    1.14853707,
    -0.863645835,
    0.153026687,
    -0.152220297,
    0.0916377577,
    0.37447827,
    1.00001263,
    -1.26551217,
)
"""erfcx(x) = u exp(P(u)), u = 1 / (1 + x / 2), to 5e-8 for x from 1/2 on.

Fitted in float64.
"""

I0_BORDER = 3.75
I0_NEAR = (0.0045813, 0.0360768, 0.2659732, 1.2067492, 3.0899424, 3.5156229, 1.0)
I0_FAR = (
    0.00392377,
    -0.01647633,
    0.02635537,
    -0.02057706,
    0.00916281,
    -0.00157565,
    0.00225319,
    0.01328592,
    0.39894228,
)
"""i0(x) = P((x / 3.75)^2) up to 3.75, exp(x) / sqrt(x) P(3.75 / x) beyond

Abramowitz and Stegun, 9.8.1. The error is 2e-7.
"""


@lowers(aten.erfinv.default, aten.special_erfinv.default)
def erfinv(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; the inverse of erf, infinite at -1 and 1, NaN beyond"""
    x = floating_value(t, self)
    one_minus_square = t.mul(t.sub(1, x), t.add(x, 1))
    w = t.negate(t.log(one_minus_square))
    # below 1, |x| has w < 17; an infinite w would make the polynomial NaN
    root = sqrt(t, t.clamp(w, 5, 32))
    tail = polynomial(t, t.sub(root, 3), ERFINV_TAIL)
    is_central = t.greater(5, w)
    centre = polynomial(t, t.sub(w, 2.5), ERFINV_CENTRE)
    y = t.mul(x, t.select(is_central, centre, tail))
    # beyond -1 and 1, w is NaN, and so must be the result; ``y`` may be a number there
    y = t.select(t.equal(w, w), y, w)
    is_edge = t.equal(t.abs(x), 1)
    at_edge = t.mul(x, inf)
    return t.select(is_edge, at_edge, y)


@lowers(aten.erfc.default, aten.special_erfc.default)
def erfc(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; 1 - erf(x), with an error up to 4e-7 of the value: above 1/2 it is
    exp(-x^2) erfcx(x)
    """
    x = floating_value(t, self)
    # erfc(16) is 0 in fp32
    clamped = t.clamp(x, ERFC_BORDER, 16)
    exponential = _exp_of_square(t, clamped, sign=-1)
    tail = t.mul(exponential, _erfcx_tail(t, clamped))
    is_tail = t.greater(x, ERFC_BORDER)
    return t.select(is_tail, tail, t.sub(1, t.erf(x)))


@lowers(aten.special_erfcx.default)
def special_erfcx(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; exp(x^2) erfc(x), with an error up to 6e-7 of the value"""
    x = floating_value(t, self)
    # exp(16^2) is infinite in fp32
    exponential = _exp_of_square(t, t.clamp(x, -16, ERFC_BORDER), sign=1)
    product = t.mul(exponential, t.sub(1, t.erf(x)))
    is_tail = t.greater(x, ERFC_BORDER)
    tail = _erfcx_tail(t, t.maximum(x, ERFC_BORDER))
    return t.select(is_tail, tail, product)


def _erfcx_tail(t: Tosa, x: Value) -> Value:
    """Return exp(x^2) erfc(x) for x [*S] >= 1/2, by the polynomial ERFC_TAIL."""
    u = t.reciprocal(t.add(t.mul(x, 0.5), 1))
    return t.mul(u, t.exp(polynomial(t, u, ERFC_TAIL)))


def _exp_of_square(t: Tosa, x: Value, sign: int) -> Value:
    """Return exp(x^2), or exp(-x^2) for a ``sign`` of -1, where |x| <= 16.

    A rounded x^2 of up to 256 would be too inexact for an exponent. x^2 is the sum of
    c^2 and (x - c) (x + c). c has the first 12 bits of x, so that c^2 is exact in fp32.
    """
    # |x| <= 16 has 4 bits before the binary point; c keeps 8 bits after it
    c = t.mul(t.floor(t.mul(x, 256)), 1 / 256)
    rest = t.mul(t.sub(x, c), t.add(x, c))
    main_factor = t.exp(t.mul(t.mul(c, c), sign))
    return t.mul(main_factor, t.exp(t.mul(rest, sign)))


@lowers(aten.hypot.default)
def hypot(t: Tosa, self: Value, other: Value) -> Value:
    """[*S], [*S] -> [*S]; sqrt(x^2 + y^2) as larger * sqrt(1 + (smaller / larger)^2):
    this square does not overflow
    """
    left, right = promoted(t, self, other)
    x = t.abs(left)  # type: ignore[arg-type]
    y = t.abs(right)  # type: ignore[arg-type]
    larger = t.maximum(x, y)
    smaller = t.minimum(x, y)
    ratio = quotient_of(t, smaller, larger)
    factor = sqrt(t, t.add(t.mul(ratio, ratio), 1))
    length = t.mul(larger, factor)
    # the ratio of two zeros is NaN
    length = t.select(t.equal(larger, 0), larger, length)
    is_infinite = t.logical_or(t.equal(x, inf), t.equal(y, inf))
    return t.select(is_infinite, inf, length)


@lowers(aten.logaddexp2.default)
def logaddexp2(t: Tosa, self: Value, other: Value) -> Value:
    """[*S], [*S] -> [*S]; log2(2^x + 2^y) = max(x, y) + log1p(2^-|x - y|) / log(2)"""
    left, right = promoted(t, self, other)
    larger = t.maximum(left, right)
    distance = t.abs(t.sub(left, right))
    ratio = t.exp(t.mul(distance, -LN2))
    summand = t.mul(log1p_of(t, ratio), 1 / LN2)
    # equal infinities would have a distance of NaN
    are_equal = t.equal(left, right)
    return t.select(are_equal, t.add(larger, 1), t.add(larger, summand))


@lowers(aten.angle.default)
def angle(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; the angle of real numbers in the complex plane: pi below 0, else 0;
    NaN for NaN
    """
    x = floating_value(t, self)
    radians = t.select(t.greater(0, x), t.like(math.pi, x), 0)
    return t.select(t.equal(x, x), radians, x)


def _i0_scaled(t: Tosa, x: Value) -> Value:
    """Return exp(-x) i0(x) for x [*S] >= 0; it does not overflow as i0 does."""
    near = t.minimum(x, I0_BORDER)
    far = t.maximum(x, I0_BORDER)
    ratio = t.mul(near, 1 / I0_BORDER)
    near_polynomial = polynomial(t, t.mul(ratio, ratio), I0_NEAR)
    near_result = t.mul(near_polynomial, t.exp(t.negate(near)))
    inverse_ratio = t.mul(t.reciprocal(far), I0_BORDER)
    far_polynomial = polynomial(t, inverse_ratio, I0_FAR)
    far_result = t.mul(far_polynomial, t.rsqrt(far))
    return t.select(t.greater(I0_BORDER, x), near_result, far_result)


@lowers(aten.i0.default, aten.special_i0.default)
def i0(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; the modified Bessel function of order 0"""
    x = t.abs(floating_value(t, self))
    return t.mul(_i0_scaled(t, x), t.exp(x))


@lowers(aten.special_i0e.default)
def special_i0e(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; i0(x) exp(-|x|)"""
    return _i0_scaled(t, t.abs(floating_value(t, self)))
