"""Powers x ** y.

POW is defined for positive finite bases only. So rules compute |x| ** y, and handle
signs, zeros, infinities and NaN with SELECT. The error of POW grows with |y log x|: in
the reference model, it is 2e-6 of the result for results near 1e8, 1e-5 near 1e30.
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
MOST_PRODUCTS = 16
"""The largest exponent of floats that is computed by products."""


def _integer_power(t: Tosa, x: Value, exponent: int) -> Value:
    """Return x ** exponent for a positive integer exponent, by repeated squaring.

    x ** 5 is (x ** 2) ** 2 * x.
    """
    if exponent == 1:
        return x
    half = _integer_power(t, x, exponent // 2)
    squared = product(t, half, half)
    if exponent % 2 == 0:
        return squared
    return product(t, squared, x)


def fixed_power(t: Tosa, x: Value, exponent: float) -> Value:
    """Return x [*S] ** exponent, by products, square roots or POW.

    Small whole exponents take products, and multiples of 1/2 a square root. Raises
    Unsupported for integers x if the exponent is negative or not whole.
    """
    if exponent == 0:
        return filled(t, x.shape, 1, TORCH_DTYPES[x.dtype])
    is_float = x.dtype in FLOATS
    is_whole = exponent == int(exponent)
    # POW takes floats only
    has_products = exponent <= MOST_PRODUCTS or not is_float
    if is_whole and exponent > 0 and has_products:
        return _integer_power(t, x, int(exponent))
    t.refuse_unless(is_float, f"the power {exponent} of an integer is not lowered")
    if exponent == 0.5:
        return sqrt(t, x)
    if exponent == -0.5:
        return t.rsqrt(x)
    if is_whole and -MOST_PRODUCTS <= exponent < 0:
        positive_power = _integer_power(t, x, -int(exponent))
        return t.reciprocal(positive_power)
    return _power_of_magnitude(t, x, exponent)


def _power_of_magnitude(t: Tosa, x: Value, exponent: float) -> Value:
    """Return x ** exponent, computed as |x| ** exponent.

    Where x is negative, the result is negated if the exponent is odd, and replaced by
    NaN if the exponent is not whole.
    """
    magnitude = t.abs(x)
    is_multiple_of_half = 2 * exponent == int(2 * exponent)
    if is_multiple_of_half and abs(exponent) <= MOST_PRODUCTS:
        # by products and a square root: |x| ** 2.5 is |x| * |x| * sqrt(|x|)
        whole_power = _integer_power(t, magnitude, int(abs(exponent)))
        y = product(t, whole_power, sqrt(t, magnitude))
        if exponent < 0:
            y = t.reciprocal(y)
    else:
        # the power of 0 or infinity, which POW does not take
        zero_or_inf = magnitude if exponent > 0 else t.reciprocal(magnitude)
        y = _positive_power(t, magnitude, exponent, zero_or_inf)
    if exponent != int(exponent):
        return t.select(_is_negative_and_finite(t, x), nan, y)
    if exponent % 2 == 0:
        return y
    return t.select(is_negative(t, x), t.negate(y), y)


def _is_negative_and_finite(t: Tosa, x: Value) -> Value:
    """Return bool, true for negative finite numbers.

    Their power is NaN unless the exponent is whole. As in C's pow, a power of -inf is
    not NaN: (-inf) ** 0.5 is inf.
    """
    is_below_zero = t.greater(0, x)
    return t.logical_and(is_below_zero, t.greater(x, -inf))


def _positive_power(t: Tosa, base: Value, exponent: Operand, otherwise: Value) -> Value:
    """Return ``base`` ** exponent where ``base`` is positive and finite.

    Elsewhere return ``otherwise``.
    """
    is_defined = t.logical_and(t.greater(base, 0), t.greater(inf, base))
    y = t.pow(t.select(is_defined, base, 1), exponent)
    return t.select(is_defined, y, otherwise)


def power(t: Tosa, x: Value, y: Value) -> Value:
    """Return x [*S] ** y [*S] of floats, with the special cases of C's pow."""
    magnitude = t.abs(x)
    y_is_finite = t.greater(inf, t.abs(y))
    # the power of 0 or infinity is the base for y > 0, its reciprocal for y < 0, and 1
    # for y = 0
    y_is_positive = t.greater(y, 0)
    zero_or_inf = t.select(y_is_positive, magnitude, t.reciprocal(magnitude))
    finite_y = t.select(y_is_finite, y, 0)
    otherwise = t.select(t.equal(y, 0), 1, zero_or_inf)
    with_finite_y = _positive_power(t, magnitude, finite_y, otherwise)
    with_infinite_y = _infinite_power(t, x, y, magnitude)
    unsigned = t.select(y_is_finite, with_finite_y, with_infinite_y)
    signed = _with_sign_of_power(t, x, y, unsigned)
    # 1 to any power is 1, even to NaN
    return t.select(t.equal(x, 1), 1, signed)


def _infinite_power(t: Tosa, x: Value, y: Value, magnitude: Value) -> Value:
    """Return |x| ** y for infinite y, given ``magnitude`` = |x|.

    |x| ** inf is inf for |x| > 1, 1 for |x| = 1, else 0; |x| ** -inf is the reciprocal.
    NaN stays NaN.
    """
    is_above_one = t.greater(magnitude, 1)
    grows = t.logical_not(t.logical_xor(is_above_one, t.greater(y, 0)))
    is_one = t.equal(magnitude, 1)
    one = t.like(1, x)
    inf_or_zero = t.select(grows, t.like(inf, x), 0)
    result = t.select(is_one, one, inf_or_zero)
    are_numbers = t.logical_and(t.equal(x, x), t.equal(y, y))
    return t.select(are_numbers, result, nan)


def _with_sign_of_power(t: Tosa, x: Value, y: Value, magnitude: Value) -> Value:
    """Return x ** y, given ``magnitude`` = |x| ** y.

    It is negated where x is negative and y odd, and NaN where x is negative and finite
    and y no integer.
    """
    half = t.mul(y, 0.5)
    is_whole = t.equal(t.floor(y), y)
    is_even = t.equal(t.floor(half), half)
    is_odd = t.logical_and(is_whole, t.logical_not(is_even))
    changes_sign = t.logical_and(is_odd, is_negative(t, x))
    signed = t.select(changes_sign, t.negate(magnitude), magnitude)
    x_is_negative = _is_negative_and_finite(t, x)
    is_undefined = t.logical_and(x_is_negative, t.logical_not(is_whole))
    return t.select(is_undefined, nan, signed)


@lowers(aten.pow.Tensor_Scalar)
def pow_tensor_scalar(t: Tosa, self: Value, exponent: float) -> Value:
    """[*S] -> [*S]; POW rounds the exponent to the type of x: 1e20 ** 1.7 is off by
    2e-6 of its value

    If ``exponent`` is known at run time only (``waits``), x must have floats.
    """
    base, _ = promoted(t, self, exponent)
    assert isinstance(base, Value)
    are_bools = isinstance(exponent, bool) and self.dtype is DType.BOOL
    t.refuse_unless(
        not are_bools,
        "torch records int64 as the type of bool ** bool, and computes bool",
    )
    is_lowered = base.dtype in FLOATS or not waits(exponent)
    why = (
        f"integers to the power {exponent}, which is known at run time only, are not"
        " lowered"
    )
    t.refuse_unless(is_lowered, by_size(why, "take the power of .float()"))
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
    t.refuse_unless(
        right.dtype in FLOATS,
        "integers to the power of run-time integers are not lowered",
    )
    base = left if isinstance(left, Value) else t.like(left, right)
    return power(t, base, right)
