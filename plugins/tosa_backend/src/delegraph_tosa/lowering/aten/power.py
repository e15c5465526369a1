"""Powers.

POW is defined for positive finite bases only, so rules handle signs, zeros, infinities
and NaN with SELECT. The error of POW grows with |y log x|: in the reference model, it
is 2e-6 of the result for results near 1e8, 1e-5 near 1e30.
"""

from __future__ import annotations

import math

import torch

from ...ir.dynamic_sizes import waits
from ...ir.graph import Value
from ...ir.types import FLOATS, DType
from ..builder import Operand, Tosa
from ..promotion import promoted
from ..registry import lowers
from ..torch_values.hints import by_size
from ..torch_values.tensor_types import TORCH_DTYPES
from .create import filled
from .elementwise import product, sqrt
from .special_values import is_negative

aten = torch.ops.aten
inf = math.inf
nan = math.nan


def integer_power(t: Tosa, x: Value, exponent: int) -> Value:
    """Return x ** exponent for a positive integer exponent, by repeated squaring."""
    if exponent == 1:
        return x
    half = integer_power(t, x, exponent // 2)
    squared = product(t, half, half)
    return product(t, squared, x) if exponent % 2 else squared


def fixed_power(t: Tosa, x: Value, exponent: float) -> Value:
    """Return x [*S] ** exponent, by products, square roots or POW.

    Small integers use products, multiples of 1/2 a square root. Raises Unsupported for
    integers to a power that is negative or not whole.
    """
    if exponent == 0:
        return filled(t, x.shape, 1, TORCH_DTYPES[x.dtype])
    if exponent == int(exponent) and (
        1 <= exponent <= 16 or (x.dtype not in FLOATS and exponent > 0)
    ):
        return integer_power(t, x, int(exponent))
    t.require(x.dtype in FLOATS, f"the power {exponent} of an integer is not lowered")
    if exponent == 0.5:
        return sqrt(t, x)
    if exponent == -0.5:
        return t.rsqrt(x)
    if exponent == int(exponent) and -16 <= exponent < 0:
        return t.reciprocal(integer_power(t, x, -int(exponent)))
    return _power_of_magnitude(t, x, exponent)


def _power_of_magnitude(t: Tosa, x: Value, exponent: float) -> Value:
    """Return x ** exponent, computed as |x| ** exponent.

    For negative x, the result is negated if the exponent is odd, and NaN if the
    exponent is no integer.
    """
    magnitude = t.abs(x)
    # small multiples of 1/2, by products and a square root: |x| ** 2.5 is |x| * |x| *
    # sqrt(|x|)
    if 2 * exponent == int(2 * exponent) and abs(exponent) <= 16:
        y = product(
            t, integer_power(t, magnitude, int(abs(exponent))), sqrt(t, magnitude)
        )
        y = y if exponent > 0 else t.reciprocal(y)
    else:
        y = _positive_power(
            t,
            magnitude,
            exponent,
            magnitude if exponent > 0 else t.reciprocal(magnitude),
        )
    if exponent == int(exponent):
        return y if exponent % 2 == 0 else t.select(is_negative(t, x), t.negate(y), y)
    # as in C's pow, -inf to any power is inf to that power
    return t.select(t.logical_and(t.greater(0, x), t.greater(x, -inf)), nan, y)


def _positive_power(t: Tosa, base: Value, exponent: Operand, otherwise: Value) -> Value:
    """Return ``base`` ** exponent for positive finite ``base``, else ``otherwise``"""
    defined = t.logical_and(t.greater(base, 0), t.greater(inf, base))
    return t.select(defined, t.pow(t.select(defined, base, 1), exponent), otherwise)


def power(t: Tosa, x: Value, y: Value) -> Value:
    """Return x [*S] ** y [*S] of floats, with the special cases of C's pow"""
    magnitude = t.abs(x)
    y_is_finite = t.greater(inf, t.abs(y))
    # POW does not take the bases 0 and infinity: for y > 0 the power of both is the
    # base, for y < 0 its reciprocal
    zero_or_inf = t.select(t.greater(y, 0), magnitude, t.reciprocal(magnitude))
    with_finite_y = _positive_power(
        t,
        magnitude,
        t.select(y_is_finite, y, 0),
        t.select(t.equal(y, 0), 1, zero_or_inf),
    )
    # an infinite y: |x| ** y is inf if |x| > 1 and y > 0 or neither holds, 1 if |x| is
    # 1, else 0; NaN stays NaN
    grows = t.logical_not(t.logical_xor(t.greater(magnitude, 1), t.greater(y, 0)))
    with_infinite_y = t.select(
        t.equal(magnitude, 1), t.like(1, x), t.select(grows, t.like(inf, x), 0)
    )
    with_infinite_y = t.select(
        t.logical_and(t.equal(x, x), t.equal(y, y)), with_infinite_y, nan
    )
    signed = _with_sign_of_power(
        t, x, y, t.select(y_is_finite, with_finite_y, with_infinite_y)
    )
    return t.select(t.equal(x, 1), 1, signed)


def _with_sign_of_power(t: Tosa, x: Value, y: Value, magnitude: Value) -> Value:
    """Return x ** y, given ``magnitude`` = |x| ** y.

    It is negated where x is negative and y odd, and NaN where x is negative and finite
    and y no integer.
    """
    half = t.mul(y, 0.5)
    whole = t.equal(t.floor(y), y)
    odd = t.logical_and(whole, t.logical_not(t.equal(t.floor(half), half)))
    signed = t.select(
        t.logical_and(odd, is_negative(t, x)), t.negate(magnitude), magnitude
    )
    undefined = t.logical_and(
        t.logical_and(t.greater(0, x), t.greater(x, -inf)), t.logical_not(whole)
    )
    return t.select(undefined, nan, signed)


@lowers(aten.pow.Tensor_Scalar)
def pow_tensor_scalar(t: Tosa, self: Value, exponent: float) -> Value:
    """[*S] -> [*S]; POW rounds the exponent to the type of x: 1e20 ** 1.7 is off by
    2e-6 of its value

    ``exponent`` may be known at run time only (``waits``); then x must have floats.
    """
    base, _ = promoted(t, self, exponent)
    assert isinstance(base, Value)
    bool_to_bool = isinstance(exponent, bool) and self.dtype is DType.BOOL
    t.require(
        not bool_to_bool,
        "torch records int64 as the type of bool ** bool, and computes bool",
    )
    is_lowered = base.dtype in FLOATS or not waits(exponent)
    why = (
        f"integers to the power {exponent}, which is known at run time only, are not"
        " lowered"
    )
    t.require(is_lowered, by_size(why, "take the power of .float()"))
    if not waits(exponent) and math.isfinite(exponent):
        return fixed_power(t, base, exponent)
    return power(t, base, t.like(exponent, base))


@lowers(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow(t: Tosa, self: Operand, exponent: Value) -> Value:
    """[*S], [*S] -> [*S]; by POW, with an error up to 4e-6 of the value for bases and
    exponents up to 20
    """
    left, right = promoted(t, self, exponent)
    assert isinstance(right, Value)
    t.require(
        right.dtype in FLOATS,
        "integers to the power of run-time integers are not lowered",
    )
    return power(t, left if isinstance(left, Value) else t.like(left, right), right)
