"""Functions of int8 are a TABLE, or several where the results have more bits.

Of int16 a TABLE has an entry for every 128th integer only, and is linear between them.

Where that is too coarse, a second TABLE has what rounding took from the entries of the first, and a third one how far
the function bends between them. Where it is no curve, all its values are a constant that GATHER reads, which costs an
NPU some 40 cycles each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...ir.graph import Array, Value, literal
from ...ir.types import ARRAY_DTYPES, DType
from ..builder import Tosa

REST = 14
"""Bits of the second table: what an entry lost, in 2**-14 of a step."""
EQUAL = 0.99
"""The share of integers that interpolation has to give as they are wanted; the others may be one step off."""
INT16_VALUES = 1 << 16
PIECE = 128
"""How far apart entries are."""
Entries = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class Interpolation(NamedTuple):
    """Tables [513] of what is added up: entries, what rounding took from them in 2**-REST, bends in 2**-``bits``.

    All of that is in units of so many steps of the result.
    """

    unit: int
    first: Array
    rest: Array | None = None
    bend: Array | None = None
    bits: int = 0

    def at_integers(self) -> Array:
        """The sum for each int16, in steps [65536]."""
        found = _interpolated(self.first) / PIECE
        if self.rest is not None:
            found = found + _interpolated(self.rest) / (PIECE << REST)
        if self.bend is not None:
            place = np.arange(PIECE)
            arch = np.tile(place * (PIECE - place) * 4 / PIECE**2, INT16_VALUES // PIECE)
            found = found + _interpolated(self.bend) / (PIECE << self.bits) * arch
        return found * self.unit


def interpolated(steps: Array, middles: Array, wanted: Array, zero_point: int) -> Interpolation | None:
    """The fewest tables that come near enough; None if none do.

    ``steps``: the function at every 128th integer [513], and ``middles`` between them [512], in steps of the result,
    float64. ``wanted``: the integers that the result should have, for each int16 [65536].
    """
    if not np.isfinite(steps).all():
        return None
    # Entries beyond int16 are limited. Where a piece begins inside and ends beyond, they have to be right.
    units = (1, 2, 4) if np.abs(steps).max() > INT16_VALUES // 2 else (1,)
    candidates = (found for unit in units for found in _candidates(steps / unit, middles / unit, unit))
    return next((found for found in candidates if _is_near(found.at_integers(), wanted, zero_point)), None)


def _candidates(steps: Array, middles: Array, unit: int) -> Iterator[Interpolation]:
    first = np.clip(np.rint(steps), -32768, 32767).astype(np.int64)
    yield Interpolation(unit, first)
    rest = np.rint(np.clip(steps - first, -1, 1) * (1 << REST)).astype(np.int64)
    yield Interpolation(unit, first, rest)
    inside = np.abs(steps - first) <= 1
    bends = np.where(inside[1:] & inside[:-1], middles - (steps[1:] + steps[:-1]) / 2, 0)
    bits = REST - max(0, math.ceil(math.log2(max(np.abs(bends).max(), 1))))
    if np.isfinite(bends).all() and bits >= 0:
        at_entries = (np.append(bends, bends[-1]) + np.insert(bends, 0, bends[0])) / 2
        yield Interpolation(unit, first, rest, np.rint(at_entries * (1 << bits)).astype(np.int64), bits)


def _interpolated(table: Array) -> Array:
    """What TABLE gives for each int16, with 7 more bits [65536]."""
    base, place = table[:-1, None], np.arange(PIECE)
    result: Array = (base * PIECE + (table[1:, None] - base) * place).reshape(-1)
    return result


def _is_near(found: Array, wanted: Array, zero_point: int) -> bool:
    limits = np.iinfo(wanted.dtype)
    distance = np.abs(np.clip(np.floor(found + 0.5) + zero_point, limits.min, limits.max) - wanted)
    return bool(distance.max() <= 1 and (distance == 0).mean() >= EQUAL)


def table_sums(t: Tosa, q: Value, tables: Interpolation) -> tuple[Value, float]:
    """q int16 [*S] -> int32 [*S], and how many steps of the result each of its steps is."""

    def looked_up(table: Array) -> Value:
        return t.table(q, literal(table, DType.INT16, np.int16))

    first = looked_up(tables.first)
    if tables.rest is None:
        return first, tables.unit / PIECE
    sums = t.add(t.left_shift(first, REST - 7), t.right_shift(looked_up(tables.rest), 7))
    if tables.bend is not None:
        place = t.bitwise_and(t.cast(q, DType.INT32), PIECE - 1)
        arch = t.mul(place, t.sub(PIECE, place))
        sums = t.add(sums, t.mul(looked_up(tables.bend), arch, shift=tables.bits + 7 + 12 - REST))
    return sums, tables.unit / (1 << REST)


def gathered(t: Tosa, q: Value, values: Array, dtype: DType) -> Value:
    """q int16 [*S], a value for each int16 [65536] -> [*S] of ``dtype``"""
    index = t.add(t.cast(q, DType.INT32), INT16_VALUES // 2)
    table = literal(values.reshape(1, -1, 1), dtype, ARRAY_DTYPES[dtype])
    found = t.gather(table, t.reshape(index, (1, math.prod(q.shape))))
    return t.reshape(found, q.shape)


def looked_up(t: Tosa, index: Value, entries: Entries) -> Value:
    """index int8 [*S], 256 entries -> int32 [*S]: TABLE has 8 bits, so one for each 8 of theirs."""
    parts: list[Value] = []
    while not parts or np.abs(entries).max() > 0:
        upper = (entries + 128) >> 8
        parts.append(literal(entries - 256 * upper, DType.INT8, np.int8))
        entries = upper
    y = t.cast(t.table(index, parts[-1]), DType.INT32)
    for part in parts[-2::-1]:
        y = t.add(t.left_shift(y, 8), t.cast(t.table(index, part), DType.INT32))
    return y
