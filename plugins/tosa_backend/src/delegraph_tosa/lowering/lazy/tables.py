"""Functions of quantized values as lookup tables (TABLE).

A TABLE of int8 has all 256 results; results of more bits take several tables, 8 bits each. A TABLE of int16 has an
entry for every 128th integer only, and interpolates linearly between them. Where that is too coarse, more tables are
added to the first: a second one has what rounding took from the first one's entries, a third one how far the function
bends between them. Where even that is too coarse (the function is no smooth curve), all its values are a constant that
GATHER reads, which costs an NPU some 40 cycles for each element.
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
"""Bits of the second table: it holds what rounding took from an entry, in units of 2**-14 of a step."""
EQUAL = 0.99
"""The share of integers for which the interpolated result has to be the wanted one; the others may be one step off."""
INT16_VALUES = 1 << 16
PIECE = 128
"""How many integers lie between two entries of a table of int16."""
Entries = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class Interpolation(NamedTuple):
    """Tables [513] whose sum approximates a function of int16, in units of ``unit`` steps of the result.

    ``first`` has the entries, ``rest`` what rounding took from them in 2**-REST, ``bend`` the distance from the
    straight line in the middle between two entries, in 2**-``bits``.
    """

    unit: int
    first: Array
    rest: Array | None = None
    bend: Array | None = None
    bits: int = 0

    def at_integers(self) -> Array:
        """The approximated result for each int16, in steps of the result [65536]."""
        found = _table_results(self.first) / PIECE
        if self.rest is not None:
            found = found + _table_results(self.rest) / (PIECE << REST)
        if self.bend is not None:
            place = np.arange(PIECE)
            # a parabola that is 0 at both entries and 1 between them: the form of a bend
            arch = np.tile(place * (PIECE - place) * 4 / PIECE**2, INT16_VALUES // PIECE)
            found = found + _table_results(self.bend) / (PIECE << self.bits) * arch
        return found * self.unit


def interpolated(steps: Array, middles: Array, wanted: Array, zero_point: int) -> Interpolation | None:
    """The fewest tables that approximate a function well enough; None if none do.

    ``steps``: the function at every 128th integer [513], ``middles``: between those [512]; both in steps of the result,
    as float64. ``wanted``: the integers that the result should be for each int16 [65536].
    """
    if not np.isfinite(steps).all():
        return None

    # Entries beyond int16 are limited to it, which changes a straight piece that begins inside and ends beyond. Coarser
    # units hold such entries.
    units = (1, 2, 4) if np.abs(steps).max() > INT16_VALUES // 2 else (1,)
    candidates = (found for unit in units for found in _candidates(steps / unit, middles / unit, unit))
    return next((found for found in candidates if _is_near_enough(found.at_integers(), wanted, zero_point)), None)


def _candidates(steps: Array, middles: Array, unit: int) -> Iterator[Interpolation]:
    """Approximations with one, two and three tables, in this order."""
    first = np.clip(np.rint(steps), -32768, 32767).astype(np.int64)
    yield Interpolation(unit, first)
    rest = np.rint(np.clip(steps - first, -1, 1) * (1 << REST)).astype(np.int64)
    yield Interpolation(unit, first, rest)
    inside = np.abs(steps - first) <= 1
    bends = np.where(inside[1:] & inside[:-1], middles - (steps[1:] + steps[:-1]) / 2, 0)
    # as many bits behind the point as leave room for the largest bend in 16 bits
    bits = REST - max(0, math.ceil(math.log2(max(np.abs(bends).max(), 1))))
    if np.isfinite(bends).all() and bits >= 0:
        at_entries = (np.append(bends, bends[-1]) + np.insert(bends, 0, bends[0])) / 2
        yield Interpolation(unit, first, rest, np.rint(at_entries * (1 << bits)).astype(np.int64), bits)


def _table_results(table: Array) -> Array:
    """What TABLE returns for each int16 [65536]: interpolated entries, with 7 more bits."""
    base, place = table[:-1, None], np.arange(PIECE)
    result: Array = (base * PIECE + (table[1:, None] - base) * place).reshape(-1)
    return result


def _is_near_enough(found: Array, wanted: Array, zero_point: int) -> bool:
    """Whether rounded results are the ``wanted`` ones but for a few (``EQUAL``) that are one step off."""
    limits = np.iinfo(wanted.dtype)
    distance = np.abs(np.clip(np.floor(found + 0.5) + zero_point, limits.min, limits.max) - wanted)
    return bool(distance.max() <= 1 and (distance == 0).mean() >= EQUAL)


def table_sums(t: Tosa, q: Value, tables: Interpolation) -> tuple[Value, float]:
    """The sum of the tables' results for q int16 [*S], as int32 [*S], and how many steps of the result its 1 is."""

    def looked_up(table: Array) -> Value:
        return t.table(q, literal(table, DType.INT16, np.int16))

    first = looked_up(tables.first)
    if tables.rest is None:
        return first, tables.unit / PIECE
    # both with REST bits behind the point: TABLE gives 7 of them
    sums = t.add(t.left_shift(first, REST - 7), t.right_shift(looked_up(tables.rest), 7))
    if tables.bend is not None:
        place = t.bitwise_and(t.cast(q, DType.INT32), PIECE - 1)
        arch = t.mul(place, t.sub(PIECE, place))
        sums = t.add(sums, t.mul(looked_up(tables.bend), arch, shift=tables.bits + 7 + 12 - REST))
    return sums, tables.unit / (1 << REST)


def gathered(t: Tosa, q: Value, values: Array, dtype: DType) -> Value:
    """A value for each int16 [65536], looked up for q int16 [*S] -> [*S] of ``dtype``."""
    index = t.add(t.cast(q, DType.INT32), INT16_VALUES // 2)
    table = literal(values.reshape(1, -1, 1), dtype, ARRAY_DTYPES[dtype])
    found = t.gather(table, t.reshape(index, (1, math.prod(q.shape))))
    return t.reshape(found, q.shape)


def looked_up(t: Tosa, index: Value, entries: Entries) -> Value:
    """256 ``entries`` of any size, looked up for index int8 [*S] -> int32 [*S].

    TABLE of int8 gives 8 bits, so there is one for each 8 bits of the entries, and their results are shifted and added.
    """
    parts: list[Value] = []
    while not parts or np.abs(entries).max() > 0:
        upper = (entries + 128) >> 8
        parts.append(literal(entries - 256 * upper, DType.INT8, np.int8))
        entries = upper
    y = t.cast(t.table(index, parts[-1]), DType.INT32)
    for part in parts[-2::-1]:
        y = t.add(t.left_shift(y, 8), t.cast(t.table(index, part), DType.INT32))
    return y
