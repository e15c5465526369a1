"""Functions of quantized values as lookup tables (TABLE).

A TABLE of int8 has all 256 results; results of more bits take several tables, 8 bits
each. A TABLE of int16 has an entry for every 128th integer only, and interpolates
linearly between them. If that is too coarse, the results of more tables are added: the
second table has the rounding errors of the first one's entries, the third one the
function's distance from a straight line between entries. If that is still too coarse
(the function is not smooth), a constant holds all 65536 values, and GATHER reads them,
which costs an NPU some 40 cycles for each element.
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
"""Fraction bits of the second table, in units of 2**-14 of a step.

It holds the rounding errors of entries.
"""
EQUAL = 0.99
"""The share of integers for which the interpolated result has to be exact.

All others may be one step off.
"""
INT16_VALUES = 1 << 16
PIECE = 128
"""How many integers lie between two entries of a table of int16."""
Entries = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class Interpolation(NamedTuple):
    """Tables [513] with a sum that approximates a function of int16.

    The sum is in units of ``unit`` steps of the result. ``first`` has the rounded
    entries, ``rest`` their rounding errors in units of 2**-REST, ``bend`` the
    function's distance from the straight line in the middle between two entries, in
    units of 2**-``bits``. None: without this table.
    """

    unit: int
    first: Array
    rest: Array | None = None
    bend: Array | None = None
    bits: int = 0

    def at_integers(self) -> Array:
        """Return the approximated result for each int16 [65536], in steps."""
        # the results of TABLE are 128 times the interpolated entries
        results = _table_results(self.first) / PIECE
        if self.rest is not None:
            results = results + _table_results(self.rest) / (PIECE << REST)
        if self.bend is not None:
            place = np.arange(PIECE)
            # a parabola that is 0 at both entries and 1 in the middle between them
            arch = place * (PIECE - place) * 4 / PIECE**2
            arches = np.tile(arch, INT16_VALUES // PIECE)
            bends = _table_results(self.bend) / (PIECE << self.bits)
            results = results + bends * arches
        return results * self.unit


def interpolated(
    steps: Array, middles: Array, wanted: Array, zero_point: int
) -> Interpolation | None:
    """Return the fewest tables that approximate a function well enough (EQUAL).

    None if three tables do not. ``steps``: the function at every 128th integer [513],
    ``middles``: halfway between them [512], both float64 in steps of the result.
    ``wanted``: the exact integer result for each int16 [65536].
    """
    if not np.isfinite(steps).all():
        return None
    units: tuple[int, ...] = (1,)
    if np.abs(steps).max() > INT16_VALUES // 2:
        # An entry beyond int16 is clamped, which changes the line from its neighbour to
        # it. In units of 2 or 4 steps, the entry may fit.
        units = (1, 2, 4)
    for unit in units:
        for tables in _candidates(steps / unit, middles / unit, unit):
            if _is_near_enough(tables.at_integers(), wanted, zero_point):
                return tables
    return None


def _candidates(steps: Array, middles: Array, unit: int) -> Iterator[Interpolation]:
    """Approximations with one, two and three tables, in this order.

    ``steps`` and ``middles`` are those of ``interpolated``, divided by ``unit``.
    """
    first = np.clip(np.rint(steps), -32768, 32767).astype(np.int64)
    yield Interpolation(unit, first)
    errors = np.clip(steps - first, -1, 1)
    rest = np.rint(errors * (1 << REST)).astype(np.int64)
    yield Interpolation(unit, first, rest)
    # where an entry was clamped to int16, the line is not the function's: no bend is
    # added there
    not_clamped = np.abs(steps - first) <= 1
    is_line = not_clamped[1:] & not_clamped[:-1]
    line = (steps[1:] + steps[:-1]) / 2
    bends = np.where(is_line, middles - line, 0)
    # the most fraction bits with which the largest bend fits into 16 bits
    largest = max(np.abs(bends).max(), 1)
    bits = REST - max(0, math.ceil(math.log2(largest)))
    if np.isfinite(bends).all() and bits >= 0:
        # a table has values at entries: the mean of the bends on both sides of an entry
        before = np.insert(bends, 0, bends[0])
        after = np.append(bends, bends[-1])
        at_entries = (after + before) / 2
        bend = np.rint(at_entries * (1 << bits)).astype(np.int64)
        yield Interpolation(unit, first, rest, bend, bits)


def _table_results(table: Array) -> Array:
    """``table`` [513] -> TABLE's result for each int16 [65536]

    These are interpolated entries times 128.
    """
    # rows of 128 results: the entry at the row's start, and the distance from there
    base = table[:-1, None]
    slope = table[1:, None] - base
    place = np.arange(PIECE)
    rows = base * PIECE + slope * place
    result: Array = rows.reshape(-1)
    return result


def _is_near_enough(results: Array, wanted: Array, zero_point: int) -> bool:
    """Return whether rounded ``results`` are near enough to ``wanted``.

    The integers ``wanted`` include ``zero_point``. A share of EQUAL has to be the same,
    and no result more than one step off.
    """
    limits = np.iinfo(wanted.dtype)
    rounded = np.floor(results + 0.5) + zero_point
    integers = np.clip(rounded, limits.min, limits.max)
    distance = np.abs(integers - wanted)
    share_of_equal = (distance == 0).mean()
    return bool(distance.max() <= 1 and share_of_equal >= EQUAL)


def table_sums(t: Tosa, q: Value, tables: Interpolation) -> tuple[Value, float]:
    """q int16 [*S] -> the sum of the tables' results, int32 [*S], and its step"""

    def looked_up(table: Array) -> Value:
        """Return TABLE's results for ``q``: int32 with 7 more fraction bits."""
        return t.table(q, literal(table, DType.INT16, np.int16))

    first = looked_up(tables.first)
    if tables.rest is None:
        return first, tables.unit / PIECE
    # a result of TABLE has 7 fraction bits more than its entries: bring both sums to
    # REST fraction bits
    entries = t.left_shift(first, REST - 7)
    errors = t.right_shift(looked_up(tables.rest), 7)
    sums = t.add(entries, errors)
    if tables.bend is not None:
        place = t.bitwise_and(t.cast(q, DType.INT32), PIECE - 1)
        # a parabola that is 0 at both entries and 64 * 64 = 2**12 in the middle
        arch = t.mul(place, t.sub(PIECE, place))
        # of the product's bits + 7 + 12 fraction bits, REST remain
        lost = tables.bits + 7 + 12 - REST
        bend = t.mul(looked_up(tables.bend), arch, shift=lost)
        sums = t.add(sums, bend)
    return sums, tables.unit / (1 << REST)


def gathered(t: Tosa, q: Value, values: Array, dtype: DType) -> Value:
    """q int16 [*S], numpy ``values`` [65536] -> each integer's value [*S], by GATHER

    The result has the type ``dtype``.
    """
    # the integer -32768 reads entry 0
    index = t.add(t.cast(q, DType.INT32), INT16_VALUES // 2)
    column = values.reshape(1, -1, 1)
    table = literal(column, dtype, ARRAY_DTYPES[dtype])
    row = t.reshape(index, (1, math.prod(q.shape)))
    results = t.gather(table, row)
    return t.reshape(results, q.shape)


def looked_up(t: Tosa, index: Value, entries: Entries) -> Value:
    """index int8 [*S], numpy ``entries`` [256] -> int32 [*S].

    Entry 0 belongs to the index -128. A TABLE of int8 returns 8 bits. So there is one
    TABLE for each 8 bits of the entries, and their results are shifted and added.
    """
    # the parts of an entry are signed bytes, the lowest first: entry = sum of parts[k]
    # * 256**k
    parts: list[Value] = []
    while not parts or np.abs(entries).max() > 0:
        upper = (entries + 128) >> 8
        parts.append(literal(entries - 256 * upper, DType.INT8, np.int8))
        entries = upper
    highest, *others = reversed(parts)
    y = t.cast(t.table(index, highest), DType.INT32)
    for part in others:
        shifted = t.left_shift(y, 8)
        lower = t.cast(t.table(index, part), DType.INT32)
        y = t.add(shifted, lower)
    return y
