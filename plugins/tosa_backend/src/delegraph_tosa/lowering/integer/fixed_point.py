"""Functions of int32 values whose magnitude is not known beforehand: 1 / x, 1 / sqrt(x), exp, ln.

CLZ and a shift bring a value to a fixed position, and Newton's iterations compute in fixed point. A number in the
format Qn is an integer that stands for itself times 2**-n.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ...ir.graph import Value
from ...ir.types import DType
from ..builder import Tosa
from ..lazy.quantization import Scale
from ..lazy.tables import Entries, looked_up
from ..lazy.values import Scaled, rescale

FRACTION = 29
"""The format of mantissas, Q29: it holds numbers below 4, with room for a sign."""
ITERATIONS = 3
"""Newton's iterations that take an error below 1/10 to one below 1e-7: each one squares it, and a little more."""


class Normalized(NamedTuple):
    """A result as ``mantissa``, Q29 between 1 and 2, and ``shift``: by so much its other factor is shifted left."""

    mantissa: Value
    shift: Value


def reciprocal(t: Tosa, x: Value) -> Normalized:
    """1 / x of x int32 > 0, such that n / x = (n << shift) * mantissa / 2**(31 + 29); of 0 it is any number.

    x << shift lies in [2**30, 2**31), as a Q31 number in [1/2, 1).
    """
    shift = t.sub(t.clz(x), 1)
    place = t.left_shift(x, shift)
    y = t.sub(_in_q29(48 / 17), t.mul(place, _in_q29(32 / 17), shift=31))
    for _ in range(ITERATIONS):
        y = t.mul(y, t.sub(_in_q29(2), t.mul(place, y, shift=31)), shift=FRACTION)
    return Normalized(y, shift)


def inverse_root(t: Tosa, x: Value) -> Normalized:
    """1 / sqrt(x) of x int32 > 0, such that n / sqrt(x) = (n << shift) * mantissa / 2**(15.5 + 29).

    x << 2 * shift lies in [2**29, 2**31), as a Q31 number in [1/4, 1).
    """
    shift = t.right_shift(t.sub(t.clz(x), 1), 1)
    place = t.left_shift(x, t.left_shift(shift, 1))
    y = t.sub(_in_q29(2.2), t.mul(place, _in_q29(1.24), shift=31))
    for _ in range(ITERATIONS + 1):
        square = t.mul(y, y, shift=FRACTION)
        y = t.mul(y, t.sub(_in_q29(1.5), t.mul(place, square, shift=32)), shift=FRACTION)
    return Normalized(y, shift)


def _in_q29(number: float) -> int:
    """The integer that stands for a number in Q29."""
    return round(number * (1 << FRACTION))


def exp_table(step: float, bits: int) -> Entries:
    """exp(step * d) for d from -255 to 0, as integers of ``bits`` bits."""
    found: Entries = np.rint(np.exp(step * np.arange(-255, 1)) * exp_one(bits)).astype(np.int64)
    return found


def exp_one(bits: int) -> int:
    """The integer that stands for 1 among integers of ``bits`` bits.

    It is a little less than 2**bits, so that rounding the upper bits up leaves them within int8.
    """
    return (1 << bits) - (1 << (bits - 7))


PLACES = 16
"""Entries of a table of exp between two whole numbers."""
BETWEEN = 20
"""Bits of the position between two entries."""
LEAST = 255 / PLACES
"""Below minus this, exp is taken to be 0. It is 1.2e-7 there, which would add up in a sum."""


_FITTED = np.polynomial.Chebyshev.interpolate(np.exp, 3, (0, 1 / PLACES))
_CUBIC: list[float] = _FITTED.convert(kind=np.polynomial.Polynomial).coef.tolist()
"""Coefficients of a cubic for exp from 0 to 1/16."""


def exp_of(t: Tosa, x: Scaled, bits: int) -> Value:
    """x int32 <= 0 -> its exp, int32 of ``bits`` bits, at most 23

    The table has exp at multiples of 1/16. The rest f, below 1/16, contributes exp(f), a cubic that is right to 1e-8.
    """
    q = t.maximum(x.q, -min(math.floor(LEAST / x.scale.factor), 2**30))
    steps = rescale(t, Scaled(q, x.scale), 1 / (PLACES << BETWEEN), 0, DType.INT32)
    steps = t.maximum(steps, -255 << BETWEEN)
    index = t.cast(t.add(t.right_shift(steps, BETWEEN), 127), DType.INT8)
    f = t.left_shift(t.bitwise_and(steps, (1 << BETWEEN) - 1), FRACTION - BETWEEN - 4)
    series: Value | int = _in_q29(_CUBIC[3])
    for coefficient in _CUBIC[2::-1]:
        series = t.add(t.mul(f, series, shift=FRACTION), _in_q29(coefficient))
    entries = exp_table(1 / PLACES, bits)
    entries[0] = 0
    return t.mul(looked_up(t, index, entries), series, shift=FRACTION)


LOG_FRACTION = 24
"""Bits behind the point of a logarithm."""
_LN2 = round(math.log(2) * 2**LOG_FRACTION)


def logarithm(t: Tosa, x: Value, one: int) -> Scaled:
    """ln(x) of x int32 > 0 in steps of 1 / ``one``, as int32 Q24

    x << shift lies in [2**30, 2**31). Its upper 8 bits choose a middle m. What is left, f = (x - m) / m, is below
    1/256, so ln(1 + f) is f - f**2 / 2.
    """
    shift = t.sub(t.clz(x), 1)
    place = t.left_shift(x, shift)
    upper = t.right_shift(place, 23)
    index = t.cast(t.sub(upper, 256), DType.INT8)
    middles = (np.arange(256) + 128.5) / 256
    rest = t.sub(t.bitwise_and(place, (1 << 23) - 1), 1 << 22)
    f = t.mul(rest, looked_up(t, index, np.rint(2**22 / middles).astype(np.int64)), shift=22)
    series = t.right_shift(t.sub(f, t.mul(f, f, shift=32)), 31 - LOG_FRACTION)
    whole = t.mul(t.sub(31, shift), _LN2)
    logs = np.rint((np.log(middles) - math.log(one)) * 2**LOG_FRACTION).astype(np.int64)
    return Scaled(t.add(t.add(whole, looked_up(t, index, logs)), series), Scale(2.0**-LOG_FRACTION))
