"""Functions of int32 values whose size is not known beforehand: 1 / x, 1 / sqrt(x), exp.

A value is brought to a fixed place by CLZ and a shift, and Newton's iterations do the rest in fixed point. Numbers are
written Qn: the integer stands for itself times 2**-n.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ...ir.graph import Value, literal
from ...ir.types import DType
from ..builder import Tosa
from ..lazy import Scaled, rescale

Entries = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
FRACTION = 29
"""Q29 holds numbers below 4, with room for a sign."""
ITERATIONS = 3
"""From an error below 1/10 to one below 1e-7: each one squares it, and a little more."""


class Normalized(NamedTuple):
    """``mantissa`` Q29, between 1 and 2, and the ``shift`` by which what belongs to it has to go to the left."""

    mantissa: Value
    shift: Value


def reciprocal(t: Tosa, x: Value) -> Normalized:
    """Of x int32 > 0: n / x = (n << shift) * mantissa / 2**(31 + 29); of 0 something.

    x << shift lies in [2**30, 2**31), as a Q31 number in [1/2, 1).
    """
    shift = t.sub(t.clz(x), 1)
    place = t.left_shift(x, shift)
    y = t.sub(_q(48 / 17), t.mul(place, _q(32 / 17), shift=31))
    for _ in range(ITERATIONS):
        y = t.mul(y, t.sub(_q(2), t.mul(place, y, shift=31)), shift=FRACTION)
    return Normalized(y, shift)


def inverse_root(t: Tosa, x: Value) -> Normalized:
    """Of x int32 > 0: n / sqrt(x) = (n << shift) * mantissa / 2**(15.5 + 29).

    x << 2 * shift lies in [2**29, 2**31), as a Q31 number in [1/4, 1).
    """
    shift = t.right_shift(t.sub(t.clz(x), 1), 1)
    place = t.left_shift(x, t.left_shift(shift, 1))
    y = t.sub(_q(2.2), t.mul(place, _q(1.24), shift=31))
    for _ in range(ITERATIONS + 1):
        square = t.mul(y, y, shift=FRACTION)
        y = t.mul(y, t.sub(_q(1.5), t.mul(place, square, shift=32)), shift=FRACTION)
    return Normalized(y, shift)


def _q(number: float) -> int:
    return round(number * (1 << FRACTION))


def looked_up(t: Tosa, index: Value, entries: Entries) -> Value:
    """index int8 [*S], 256 entries of up to 23 bits -> int32 [*S]: TABLE has 8 bits, so two or three of them."""
    parts: list[Value] = []
    while not parts or np.abs(entries).max() > 0:
        upper = (entries + 128) >> 8
        parts.append(literal(entries - 256 * upper, DType.INT8, np.int8))
        entries = upper
    y = t.cast(t.table(index, parts[-1]), DType.INT32)
    for part in parts[-2::-1]:
        y = t.add(t.left_shift(y, 8), t.cast(t.table(index, part), DType.INT32))
    return y


def exp_table(step: float, bits: int) -> Entries:
    """exp(step * d) for d from -255 to 0, of so many bits."""
    found: Entries = np.rint(np.exp(step * np.arange(-255, 1)) * ((1 << bits) - (1 << (bits - 7)))).astype(np.int64)
    return found


PLACES = 16
"""Entries of a table of exp from one whole number to the next."""
BETWEEN = 2**16
"""Steps from one entry to the next."""


LEAST = 255 / PLACES
"""Below minus this, exp is taken to be what it is there: 1.2e-7."""


def exp_of(t: Tosa, x: Scaled, bits: int) -> Value:
    """x int32 <= 0 -> its exp, int32 of so many bits, at most 23.

    Between the entries of the table, exp(f) = 1 + f + f**2 / 2 + f**3 / 6 for f below 1/16.
    """
    q = t.maximum(x.q, -min(math.floor(LEAST / x.scale.factor), 2**30))
    steps = rescale(t, Scaled(q, x.scale), 1 / (PLACES * BETWEEN), 0, DType.INT32)
    steps = t.maximum(steps, -255 * BETWEEN)
    index = t.cast(t.add(t.right_shift(steps, 16), 127), DType.INT8)
    f = t.left_shift(t.bitwise_and(steps, BETWEEN - 1), FRACTION - 20)
    third = t.add(t.mul(f, round(2**FRACTION / 6), shift=FRACTION), _q(0.5))
    series = t.add(t.mul(f, t.add(t.mul(f, third, shift=FRACTION), _q(1)), shift=FRACTION), _q(1))
    return t.mul(looked_up(t, index, exp_table(1 / PLACES, bits)), series, shift=FRACTION)
