"""Functions of int8 are a TABLE, or several where the results have more bits.

Of int16 a TABLE has an entry for every 128th integer only, and is linear between them.

Where that is too coarse, a second TABLE has what rounding took from the entries of the first. Where the function bends
too much for both, all its values are a constant that GATHER reads.
"""

from __future__ import annotations

import math

import numpy as np

from ..ir.graph import Array, Value, literal
from ..ir.types import ARRAY_DTYPES, DType
from .builder import Tosa

REST = 14
"""Bits of the second table: what an entry lost, in 2**-14 of a step."""
EQUAL = 0.99
"""The share of integers that interpolation has to give as they are wanted; the others may be one step off."""
INT16_VALUES = 1 << 16
Entries = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def interpolating_tables(steps: Array, wanted: Array, zero_point: int) -> list[Array]:
    """One or two arrays [513] for TABLE that come near enough; none if no such tables do.

    ``steps``: the function at every 128th integer, in steps of the result [513], float64. ``wanted``: the integers
    that the result should have, for each int16 [65536].
    """
    first = np.clip(np.rint(steps), -32768, 32767).astype(np.int64)
    rest = np.rint(np.clip(steps - first, -1, 1) * (1 << REST)).astype(np.int64)
    if _is_near(_interpolated(first) / 128, wanted, zero_point):
        return [first]
    if _is_near(_interpolated(first) / 128 + _interpolated(rest) / (128 << REST), wanted, zero_point):
        return [first, rest]
    return []


def _interpolated(table: Array) -> Array:
    """What TABLE gives for each int16, with 7 more bits [65536]."""
    base, place = table[:-1, None], np.arange(128)
    result: Array = (base * 128 + (table[1:, None] - base) * place).reshape(-1)
    return result


def _is_near(found: Array, wanted: Array, zero_point: int) -> bool:
    limits = np.iinfo(wanted.dtype)
    distance = np.abs(np.clip(np.floor(found + 0.5) + zero_point, limits.min, limits.max) - wanted)
    return bool(distance.max() <= 1 and (distance == 0).mean() >= EQUAL)


def table_sums(t: Tosa, q: Value, tables: list[Array]) -> tuple[Value, int]:
    """q int16 [*S] -> int32 [*S], and how many of its bits are behind the point."""
    first, *others = [t.table(q, literal(table, DType.INT16, np.int16)) for table in tables]
    if not others:
        return first, 7
    return t.add(t.left_shift(first, REST - 7), t.right_shift(others[0], 7)), REST


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
