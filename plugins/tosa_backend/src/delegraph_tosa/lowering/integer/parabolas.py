"""Functions of sums and products that are not quantized, such as ``tanh(x + y)``.

Such a sum is int32 in a known range. The range is cut into equal pieces, and over each
piece a parabola approximates the function; GATHER reads its coefficients from a
constant. The fewest pieces are taken with which the parabolas are near enough to the
results of the float rules, compared at eight or more places of each piece. If no number
of pieces is enough, and the sum has at most 16 bits, a constant holds the function's
value for each integer.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ...evaluate import materialize
from ...ir.graph import Array, Value, literal
from ...ir.types import ARRAY_DTYPES, DType
from ..builder import Tosa
from ..lazy.lazy_values import (
    SMALL,
    Lazy,
    Pointwise,
    Scaled,
    largest_magnitude,
    quantized,
)
from ..lazy.lookup_tables import EQUAL, INT16_VALUES
from ..lazy.quantization import Quantization, Scale
from ..ranges.value_ranges import range_of
from .sums import FINE, addend

SUM = "its operand is a sum or product that nothing quantizes before"
PIECES = (8, 10, 12)
"""2**8, 2**10, 2**12 pieces are tried.

More would take more than the 64 KB that all values of 16 bits take.
"""
MORE_PIECES = (14, 16)
"""2**14 and 2**16 pieces are tried too if the sum has more than 16 bits."""
PLACES = 3
"""Each parabola is compared with the function at 2**PLACES places at least."""
ALL_PLACES = 16
"""All parabolas are compared with the function at 2**ALL_PLACES places together.

Between two such places, gelu near 0 bends by less than an int16 step.
"""
COEFFICIENT = 28
"""Bits of a parabola's coefficient."""


def curve_of(t: Tosa, x: Lazy) -> Pointwise:
    """Return x as a function of one quantized value, or of itself if x is a sum.

    The caller appends its own function to it. Raises Unsupported if the range of the
    sum is not known.
    """
    function = x.pointwise()
    if function is not None:
        return function
    t.refuse_unless(x.reach(t) < math.inf, SUM)
    return Curve(addend(t, x), lambda t, v: v)


class Pieces(NamedTuple):
    """Parabolas c0 + c1 * u + c2 * u**2 over pieces of 2**``width`` integers.

    The first piece begins at ``start``. In each piece, ``u`` runs from 0 to 1.
    """

    start: int
    width: int
    coefficients: Array
    """c0, c1, c2 of each piece, float64 [N, 3], in steps without the zero point."""


class Curve(Pointwise):
    """A function of each element of ``source``, which is int32 in a known range."""

    __slots__ = ()

    def integer(self, t: Tosa, to: Quantization) -> Value:
        """Return the results by parabolas, or from a constant of all results.

        Uses the fewest pieces that are near enough. Raises Unsupported if neither is
        possible for a sum of more than 16 bits.
        """
        start, end = range_of(self.source.q)
        count = end - start + 1
        has_table = count <= INT16_VALUES
        for bits in PIECES if has_table else PIECES + MORE_PIECES:
            width = max(count.bit_length() - bits, PLACES)
            pieces = self._pieces(t, to, width)
            if pieces is not None:
                return _parabolas(t, self.source.q, pieces, to)
        t.refuse_unless(has_table, f"{SUM}, and tables cannot approximate its curve")
        index = t.sub(self.source.q, start)
        results = self.entries(t, range(start, end + 1))
        integers = materialize(quantized(t, results, to))
        return _looked_up(t, index, integers, to.dtype)

    def _pieces(self, t: Tosa, to: Quantization, width: int) -> Pieces | None:
        """Return parabolas through both ends and the middle of each piece.

        Returns None if they are not near enough to the function's results in the
        quantization ``to``.
        """
        start, most = range_of(self.source.q)
        # ``count`` pieces; the function is computed at ``samples`` places of each,
        # 2**spacing integers apart
        count = -(-(most - start + 1) >> width) or 1
        spacing = min(width - PLACES, _spacing(self.source.q))
        samples = 1 << (width - spacing)
        places = range(start, start + (count << width) + 1, 1 << spacing)
        steps = self._results_in_steps(t, places, to)
        # the samples of each piece [count,samples], and its end, the first sample of
        # the piece after it
        by_piece = steps[:-1].reshape(count, samples)
        ends = steps[samples::samples]
        coefficients = _coefficients(by_piece, ends)
        # 1, u and u**2 at the samples of a piece, [3,samples]
        exponents = np.arange(3)[:, None]
        powers = (np.arange(samples) / samples) ** exponents
        least = to.low - to.zero_point
        highest = to.high - to.zero_point
        parabolas = np.clip(coefficients @ powers, least, highest)
        wanted = np.clip(by_piece, least, highest)
        if not _is_near_enough(np.abs(parabolas - wanted), to):
            return None
        return Pieces(start, width, coefficients)

    def _results_in_steps(self, t: Tosa, places: range, to: Quantization) -> Array:
        """Return the function's results at the integers ``places``, in steps of ``to``.

        Results beyond the quantization's range are clamped later anyway: they need not be
        approximated far outside of it, and are clamped here.
        """
        steps = materialize(self.entries(t, places)).astype(np.float64) / to.scale
        without_nan = np.nan_to_num(steps, posinf=np.inf, neginf=-np.inf)
        least = to.low - to.zero_point
        highest = to.high - to.zero_point
        margin = highest - least
        clipped: Array = np.clip(without_nan, least - margin, highest + margin)
        return clipped

    def reach(self, t: Tosa, least: float = -math.inf) -> float:
        """Return the largest absolute result for evenly spaced integers.

        There are up to 2**ALL_PLACES of them. Results below ``least`` do not count.
        """
        start, most = range_of(self.source.q)
        places = range(start, most + 1, 1 << _spacing(self.source.q))
        return largest_magnitude(materialize(self.entries(t, places)), least)

    def truth(self, t: Tosa) -> Value:
        """Return the results of a function that returns bools, looked up.

        Raises Unsupported for a sum of more than 16 bits.
        """
        start, most = range_of(self.source.q)
        t.refuse_unless(most - start < INT16_VALUES, SUM)
        values = materialize(self.entries(t, range(start, most + 1)))
        index = t.sub(self.source.q, start)
        return t.cast(_looked_up(t, index, values, DType.INT8), DType.BOOL)


def _coefficients(samples: Array, ends: Array) -> Array:
    """Return c0, c1, c2 [count,3] of the parabola over each piece.

    It has the value of the first of ``samples`` [count,N] at u = 0, of the middle one
    at u = 1/2, and of ``ends`` [count] at u = 1.
    """
    first = samples[:, 0]
    middle = samples[:, samples.shape[1] // 2]
    c2 = 2 * first - 4 * middle + 2 * ends
    return np.stack([first, ends - first - c2, c2], axis=1)


def _spacing(q: Value) -> int:
    """Return the smallest s for which every 2**s-th integer of ``q`` is enough.

    These are at most 2**ALL_PLACES integers.
    """
    start, most = range_of(q)
    return max(0, (most - start + 1).bit_length() - ALL_PLACES)


def _is_near_enough(distance: Array, to: Quantization) -> bool:
    """Return whether the errors ``distance``, in steps of ``to``, are small.

    All errors must be at most 1/4 step, and 99 % of them (EQUAL) at most 1 % of a step:
    such a result rounds to another integer in 1 % of cases. A result in int32 has FINE
    bits and is quantized to at most 16 bits later, so 2**(FINE - 15) of its steps count
    as one.
    """
    step = 1 if to.dtype in SMALL else 1 << (FINE - 15)
    is_near = distance.max() <= step / 4
    share_of_equal = (distance <= (1 - EQUAL) * step).mean()
    return bool(is_near and share_of_equal >= EQUAL)


def _parabolas(t: Tosa, q: Value, pieces: Pieces, to: Quantization) -> Value:
    """q int32 [*S] -> integers [*S], by the parabola of each element's piece"""
    # the largest coefficient gets COEFFICIENT bits
    largest = max(np.abs(pieces.coefficients).max(), 1)
    fraction_bits = COEFFICIENT - math.ceil(math.log2(largest))
    integers = np.rint(pieces.coefficients * 2.0**fraction_bits).astype(np.int64)
    offset = t.sub(q, pieces.start)
    piece = t.right_shift(offset, pieces.width)
    table = literal(integers[None], DType.INT32, np.int32)
    c0, c1, c2 = _gathered_columns(t, piece, table)
    # the position in the piece, with ``width`` fraction bits: the low bits of the
    # offset
    u = t.bitwise_and(offset, (1 << pieces.width) - 1)
    slope = t.add(c1, t.mul(c2, u, shift=pieces.width))
    y = t.add(c0, t.mul(slope, u, shift=pieces.width))
    most = 1 << (COEFFICIENT + 1)
    y.range = -most, most
    return Scaled(y, Scale(to.scale / 2.0**fraction_bits)).integer(t, to)


def _looked_up(t: Tosa, index: Value, entries: Array, dtype: DType) -> Value:
    """index int32 [*S], entries [K] -> [*S] of ``dtype``: entries[index]"""
    column = entries.reshape(1, -1, 1)
    table = literal(column, dtype, ARRAY_DTYPES[dtype])
    (result,) = _gathered_columns(t, index, table)
    return result


def _gathered_columns(t: Tosa, index: Value, table: Value) -> list[Value]:
    """index int32 [*S], table [1,K,C] -> C values [*S]: table[0, index, c]"""
    count = math.prod(index.shape)
    rows = t.gather(table, t.reshape(index, (1, count)))
    columns = [t.slice(rows, (0, 0, c), (1, count, 1)) for c in range(table.shape[2])]
    return [t.reshape(column, index.shape) for column in columns]
