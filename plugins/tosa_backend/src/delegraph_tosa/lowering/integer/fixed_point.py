"""Functions of int32 values of unknown magnitude: 1 / x, 1 / sqrt(x), exp, ln.

CLZ and a shift normalize a value to 30 or 31 bits, and Newton's iterations compute in
fixed point. An integer i in the format Qn represents the number i * 2**-n.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ...ir.graph import Value
from ...ir.types import DType
from ..builder import Tosa
from ..lazy.lazy_values import Scaled, rescale
from ..lazy.lookup_tables import Entries, looked_up
from ..lazy.quantization import Scale

FRACTION = 29
"""The format of mantissas, Q29: it holds numbers below 4, with room for a sign."""
ITERATIONS = 3
"""Number of Newton iterations from a relative error of 1/10 to below 1e-7.

Each one roughly squares the error.
"""


class MantissaAndShift(NamedTuple):
    """A result as ``mantissa``, which is Q29 between 1 and 2, and ``shift``.

    A product of n and the result is computed as (n << shift) * mantissa, divided by a
    power of two.
    """

    mantissa: Value
    shift: Value


def reciprocal(t: Tosa, x: Value, iterations: int = ITERATIONS) -> MantissaAndShift:
    """Return 1 / x for x int32 > 0, as a mantissa and a shift.

    n / x is (n << shift) * mantissa / 2**(31 + 29). With two ``iterations`` the relative error is below 2e-5.
    """
    # x is shifted until its highest bit is bit 30. Read as Q31, that is a number m with
    # 1/2 <= m < 1
    shift = t.sub(t.clz(x), 1)
    m = t.left_shift(x, shift)
    # y, in Q29, is near 1 / m: it begins on the line 48/17 - 32/17 * m
    slope = t.mul(m, _in_q29(32 / 17), shift=31)
    y = t.sub(_in_q29(48 / 17), slope)
    # Newton: y = y * (2 - m * y)
    for _ in range(iterations):
        product = t.mul(m, y, shift=31)
        correction = t.sub(_in_q29(2), product)
        y = t.mul(y, correction, shift=FRACTION)
    return MantissaAndShift(y, shift)


def inverse_root(t: Tosa, x: Value) -> MantissaAndShift:
    """Return 1 / sqrt(x) for int32 x > 0, as a mantissa and a shift.

    n / sqrt(x) is (n << shift) * mantissa / 2**(15.5 + 29).
    """
    # x is shifted by an even number of bits, 2 * shift, until its highest bit is bit 29
    # or 30. Read as Q31, that is a number m with 1/4 <= m < 1
    free_bits = t.sub(t.clz(x), 1)
    shift = t.right_shift(free_bits, 1)
    even_shift = t.left_shift(shift, 1)
    m = t.left_shift(x, even_shift)
    # y, in Q29, is near 1 / sqrt(m): it begins on a line, which is less exact than that
    # of ``reciprocal``
    slope = t.mul(m, _in_q29(1.24), shift=31)
    y = t.sub(_in_q29(2.2), slope)
    # Newton, one iteration more: y = y * (3/2 - m * y**2 / 2), where a shift of 32 in
    # place of 31 halves
    for _ in range(ITERATIONS + 1):
        square = t.mul(y, y, shift=FRACTION)
        half = t.mul(m, square, shift=32)
        correction = t.sub(_in_q29(1.5), half)
        y = t.mul(y, correction, shift=FRACTION)
    return MantissaAndShift(y, shift)


def _in_q29(number: float) -> int:
    """Return a number as an integer in Q29."""
    return round(number * (1 << FRACTION))


def exp_table(step: float, bits: int) -> Entries:
    """Return exp(step * d) for d from -255 to 0, with 1 as ``exp_one(bits)``."""
    distances = np.arange(-255, 1)
    exponentials = np.exp(step * distances) * exp_one(bits)
    entries: Entries = np.rint(exponentials).astype(np.int64)
    return entries


def exp_one(bits: int) -> int:
    """Return the integer for 1 in results of ``exp_of``: 2**bits - 2**(bits - 7).

    With 2**bits, the upper 8 bits of a result could be rounded up to 128, which is no
    int8.
    """
    return (1 << bits) - (1 << (bits - 7))


PLACES = 16
"""Entries of the table of exp for each unit: its entries are 1/16 apart."""
BETWEEN = 20
"""Bits of the position between two entries."""
LEAST = 255 / PLACES
"""For x <= -LEAST, exp(x) is at most 1.2e-7 and becomes 0.

Many such terms would add up in a sum.
"""


_FITTED = np.polynomial.Chebyshev.interpolate(np.exp, 3, (0, 1 / PLACES))
_CUBIC: list[float] = _FITTED.convert(kind=np.polynomial.Polynomial).coef.tolist()
"""Coefficients of a cubic for exp from 0 to 1/16."""


def exp_of(t: Tosa, x: Scaled, bits: int) -> Value:
    """x int32 <= 0 -> exp(x), int32 of ``bits`` bits, at most 23

    exp(x) = exp(k / 16) * exp(f), where k / 16 is x rounded down to a multiple of 1/16.
    A table has exp(k / 16), and a cubic gives exp(f) with an error of 1e-8.
    """
    # below -LEAST the result is 0: the integers of x are clamped there, to have few
    # bits
    farthest = min(math.floor(LEAST / x.scale.factor), 2**30)
    q = t.maximum(x.q, -farthest)
    # 16 * x with BETWEEN fraction bits: k, from -255 to 0, and f
    steps = rescale(t, Scaled(q, x.scale), 1 / (PLACES << BETWEEN), 0, DType.INT32)
    steps = t.maximum(steps, -255 << BETWEEN)
    steps.range = -255 << BETWEEN, 0
    k = t.right_shift(steps, BETWEEN)
    # the index of k in a table of 256 entries: -255 is -128
    index = t.cast(t.add(k, 127), DType.INT8)
    # the fraction of a step of 1/16 (4 bits) as Q29
    fraction = t.bitwise_and(steps, (1 << BETWEEN) - 1)
    f = t.left_shift(fraction, FRACTION - BETWEEN - 4)
    # the cubic by Horner's scheme
    series: Value | int = _in_q29(_CUBIC[3])
    for coefficient in _CUBIC[2::-1]:
        product = t.mul(f, series, shift=FRACTION)
        series = t.add(product, _in_q29(coefficient))
    entries = exp_table(1 / PLACES, bits)
    # k = -255 is x <= -LEAST, where the result is 0
    entries[0] = 0
    y = t.mul(looked_up(t, index, entries), series, shift=FRACTION)
    # one more for the rounding
    y.range = 0, exp_one(bits) + 1
    return y


LOG_FRACTION = 24
"""Fraction bits of a logarithm."""
_LN2 = round(math.log(2) * 2**LOG_FRACTION)


def logarithm(t: Tosa, x: Value, one: int) -> Scaled:
    """ln(x / one) of x int32 > 0, as int32 Q24

    With m = x << shift in [2**30, 2**31) and c the middle of the interval that the
    upper 8 bits of m name: ln(x / one) = (31 - shift) * ln(2) + ln(c / one) + ln(1 +
    f), where f = (m - c) / c is below 1/256, and ln(1 + f) is f - f**2 / 2.
    """
    shift = t.sub(t.clz(x), 1)
    m = t.left_shift(x, shift)
    m.range = 1 << 30, (1 << 31) - 1
    # the upper 8 bits without the sign, 128 .. 255, as index -128 .. -1 into a table of
    # 256 entries
    upper = t.right_shift(m, 23)
    index = t.cast(t.sub(upper, 256), DType.INT8)
    # c / 2**31 for each entry; m - c is then the lower 23 bits minus half of their
    # range
    middles = (np.arange(256) + 128.5) / 256
    lower = t.bitwise_and(m, (1 << 23) - 1)
    from_middle = t.sub(lower, 1 << 22)
    reciprocals = np.rint(2**22 / middles).astype(np.int64)
    f = t.mul(from_middle, looked_up(t, index, reciprocals), shift=22)
    # f is Q31, and a shift of 32 in place of 31 halves f**2
    half_square = t.mul(f, f, shift=32)
    log_of_fraction = t.right_shift(t.sub(f, half_square), 31 - LOG_FRACTION)
    power = t.sub(31, shift)
    log_of_power = t.mul(power, _LN2)
    logs = (np.log(middles) - math.log(one)) * 2**LOG_FRACTION
    entries = np.rint(logs).astype(np.int64)
    result = t.add(log_of_power, looked_up(t, index, entries))
    result = t.add(result, log_of_fraction)
    return Scaled(result, Scale(2.0**-LOG_FRACTION))
