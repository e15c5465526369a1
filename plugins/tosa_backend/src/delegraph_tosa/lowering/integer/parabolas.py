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
from ..lazy.lazy_values import SMALL, Lazy, Pointwise, Scaled, quantized
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
"""Each piece is compared at 2**PLACES places at least."""
ALL_PLACES = 16
"""The whole range is compared at 2**ALL_PLACES places.

Between two, gelu near 0 bends by less than an int16 step.
"""
COEFFICIENT = 28
"""Bits of a parabola's coefficient."""


def curve_of(t: Tosa, x: Lazy) -> Pointwise:
    """Return x as a function of one quantized value, else as the identity of the sum x.

    The caller appends its own function. Raises Unsupported if the range of the sum is
    not known.
    """
    function = x.pointwise()
    if function is not None:
        return function
    t.require(x.reach(t) < math.inf, SUM)
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
        for bits in PIECES if count <= INT16_VALUES else PIECES + MORE_PIECES:
            pieces = self._pieces(t, to, max(count.bit_length() - bits, PLACES))
            if pieces is not None:
                return _parabolas(t, self.source.q, pieces, to)
        t.require(
            count <= INT16_VALUES,
            f"{SUM}, and of that it is no curve that a table comes near to",
        )
        index = t.sub(self.source.q, start)
        values = materialize(quantized(t, self.entries(t, range(start, end + 1)), to))
        return _gathered_columns(
            t,
            index,
            literal(values.reshape(1, -1, 1), to.dtype, ARRAY_DTYPES[to.dtype]),
        )[0]

    def _pieces(self, t: Tosa, to: Quantization, width: int) -> Pieces | None:
        """Fit parabolas through both ends and the middle of each piece.

        None if they are not near enough to the function's results in the quantization
        ``to``.
        """
        start, most = range_of(self.source.q)
        # ``count`` pieces; the function is computed at ``samples`` places of each,
        # 2**spacing integers apart
        count = -(-(most - start + 1) >> width) or 1
        spacing = min(width - PLACES, _spacing(self.source.q))
        samples = 1 << (width - spacing)
        places = range(start, start + (count << width) + 1, 1 << spacing)
        least = to.low - to.zero_point
        highest = to.high - to.zero_point
        # results beyond the quantization's range are clamped anyway: they need not be
        # approximated far outside of it
        margin = highest - least
        # the function's results at all places, in steps of ``to``
        steps = materialize(self.entries(t, places)).astype(np.float64) / to.scale
        steps = np.clip(
            np.nan_to_num(steps, posinf=np.inf, neginf=-np.inf),
            least - margin,
            highest + margin,
        )
        # the samples of each piece [count,samples], and its end, the first sample of
        # the piece after it
        by_piece = steps[:-1].reshape(count, samples)
        ends = steps[samples::samples]
        first = by_piece[:, 0]
        middle = by_piece[:, samples // 2]
        # the parabola with the values first, middle and ends at u = 0, 1/2 and 1
        c2 = 2 * first - 4 * middle + 2 * ends
        coefficients = np.stack([first, ends - first - c2, c2], 1)
        # 1, u and u**2 at the samples of a piece, [3,samples]
        powers = (np.arange(samples) / samples) ** np.arange(3)[:, None]
        limits = least, highest
        distance = np.abs(
            np.clip(coefficients @ powers, *limits) - np.clip(by_piece, *limits)
        )
        return (
            Pieces(start, width, coefficients)
            if _is_near_enough(distance, to)
            else None
        )

    def reach(self, t: Tosa, least: float = -math.inf) -> float:
        """Return the largest absolute result for evenly spaced integers.

        There are up to 2**ALL_PLACES of them. Results below ``least`` do not count.
        """
        start, most = range_of(self.source.q)
        results = materialize(
            self.entries(t, range(start, most + 1, 1 << _spacing(self.source.q)))
        )
        return float(
            np.abs(results, out=np.zeros_like(results), where=~(results < least)).max()
        )

    def truth(self, t: Tosa) -> Value:
        """Return the results of a function that returns bools, looked up.

        Unsupported for a sum of more than 16 bits.
        """
        start, most = range_of(self.source.q)
        t.require(most - start < INT16_VALUES, SUM)
        values = materialize(self.entries(t, range(start, most + 1))).reshape(1, -1, 1)
        result = _gathered_columns(
            t, t.sub(self.source.q, start), literal(values, DType.INT8, np.int8)
        )[0]
        return t.cast(result, DType.BOOL)


def _spacing(q: Value) -> int:
    """Return the smallest s for which every 2**s-th integer of ``q`` is enough.

    These are at most 2**ALL_PLACES integers.
    """
    start, most = range_of(q)
    return max(0, (most - start + 1).bit_length() - ALL_PLACES)


def _is_near_enough(distance: Array, to: Quantization) -> bool:
    """Return whether errors are small: all at most 1/4 step, most at most 1 %.

    ``distance`` is in steps of ``to``; most means 99 % (EQUAL). A result with an error
    of 1 % of a step rounds to another integer in 1 % of cases. A result in int32 has
    FINE bits and is quantized to at most 16 bits later, so its step counts as 2**(FINE
    - 15).
    """
    step = 1 if to.dtype in SMALL else 1 << (FINE - 15)
    return bool(
        distance.max() <= step / 4 and (distance <= (1 - EQUAL) * step).mean() >= EQUAL
    )


def _parabolas(t: Tosa, q: Value, pieces: Pieces, to: Quantization) -> Value:
    """q int32 [*S] -> integers [*S], by the parabola of each element's piece"""
    # the largest coefficient gets COEFFICIENT bits
    fraction_bits = COEFFICIENT - math.ceil(
        math.log2(max(np.abs(pieces.coefficients).max(), 1))
    )
    table = np.rint(pieces.coefficients * 2.0**fraction_bits).astype(np.int64)[None]
    offset = t.sub(q, pieces.start)
    c0, c1, c2 = _gathered_columns(
        t, t.right_shift(offset, pieces.width), literal(table, DType.INT32, np.int32)
    )
    # the position in the piece, with ``width`` fraction bits: the low bits of the
    # offset
    u = t.bitwise_and(offset, (1 << pieces.width) - 1)
    y = t.add(
        c0, t.mul(t.add(c1, t.mul(c2, u, shift=pieces.width)), u, shift=pieces.width)
    )
    y.range = -(1 << (COEFFICIENT + 1)), 1 << (COEFFICIENT + 1)
    return Scaled(y, Scale(to.scale / 2.0**fraction_bits)).integer(t, to)


def _gathered_columns(t: Tosa, index: Value, table: Value) -> list[Value]:
    """index int32 [*S], table [1,K,C] -> C values [*S]: table[0, index, c]"""
    count = math.prod(index.shape)
    rows = t.gather(table, t.reshape(index, (1, count)))
    columns = [t.slice(rows, (0, 0, c), (1, count, 1)) for c in range(table.shape[2])]
    return [t.reshape(column, index.shape) for column in columns]
