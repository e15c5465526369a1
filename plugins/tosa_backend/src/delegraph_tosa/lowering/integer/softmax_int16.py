"""Softmax with 16 bits, for NPUs that rescale operands and results at no cost.

The other forms of softmax keep 23 bits and more by passes in 32 bits, each of which an
NPU takes as long for as for the whole of this one (docs/decisions/0028). Results of 8
bits do not show the difference: a TABLE of int16 interpolates exp with an error below
1e-4, most of which the division by the sum of the row takes back.
"""

from __future__ import annotations

import math

import numpy as np

from ...ir.dynamic_sizes import is_dynamic
from ...ir.graph import Value, literal
from ...ir.types import DType
from ..builder import Tosa
from ..lazy.lazy_values import Scaled, rescale
from ..lazy.lookup_tables import PIECE, Entries
from ..lazy.quantization import Scale
from .fixed_point import reciprocal

DEVICES = frozenset({"u85"})
"""Devices that rescale for free, and interpolate in a TABLE of int16."""
DEPTH = 12.0
"""Elements this far below the largest of their row have a share of 0.

exp(-12) is 0.2 of the smallest share.
"""
STEP = DEPTH / 2**16
"""The distance between two steps of the table's index."""
FINER = 4
"""Bits that distances have below a step of the index, before they are rounded to it."""
FAR = 2.0**28
"""The most finer steps that an element may be away from 0."""
COUNT = 256
"""The most elements in a row. The reciprocal of their sum is exact to 0.4 %.

It is more exact where shares are large.
"""
SHARE = 15
"""Fraction bits of a share."""


def takes_int16_softmax(t: Tosa, x: Scaled, axis: int) -> bool:
    """Return whether the target is such an NPU and the rows are short enough.

    The elements of x must also be near enough to 0.
    """
    fits = (
        x.reach(t) * 2**FINER / STEP < FAR
        and not is_dynamic(x.shape[axis])
        and x.shape[axis] <= COUNT
    )
    return fits and bool(DEVICES & t.spec.devices) and "int16" in t.spec.extensions


def int16_shares(t: Tosa, x: Scaled, axis: int, seen: Value | None = None) -> Scaled:
    """Return the softmax of x [*S] along ``axis``, as int32.

    Elements where ``seen``, bool, is false have no share; a ``seen`` of None hides
    none. A row of which nothing is seen is 0. Each reader of an operand has a RESCALE
    of its own, because NPUs fuse those with one reader.
    """
    distance = t.sub(_fine(t, x), _fine(t, _largest(t, x, axis)))
    # the largest element gets the last index
    raised = t.add(distance, (2**15 - 1) << FINER)
    index = rescale(t, Scaled(raised, Scale(2.0**-FINER)), 1.0, 0, DType.INT16)
    looked_up = t.table(index, literal(_exponentials(), DType.INT16, np.int16))
    e = rescale(t, Scaled(looked_up, Scale(1 / PIECE)), 1.0, 0, DType.INT16)
    if seen is not None:
        e = t.select(seen, e, 0)
    total = t.reduce_sum(rescale(t, Scaled(e, Scale(1.0)), 1.0, 0, DType.INT32), axis)
    # the largest element alone makes 2**15 - 1, unless nothing of the row is seen
    inverse = reciprocal(t, t.maximum(total, 2**15 - 1), iterations=2)
    # 2**34 / total = (2**34 << shift) * mantissa / 2**60, where the shift is 16 at
    # most; 4 bits are rounded off
    share = t.right_shift(inverse.mantissa, t.sub(26, inverse.shift))
    r = rescale(t, Scaled(share, Scale(2.0**-4)), 1.0, 0, DType.INT16)
    y = t.mul(e, r)
    y.range = (0, 1 << 2 * SHARE)
    return Scaled(y, Scale(2.0 ** (-2 * SHARE)))


def _fine(t: Tosa, x: Scaled) -> Value:
    """Return x as int32 in finer steps."""
    return rescale(t, x, STEP / 2**FINER, 0, DType.INT32)


def _exponentials() -> Entries:
    """Return the entries [513] of the table: exp for every 128th index.

    The last index represents exp(0) = 1.
    """
    places = (np.arange(-(2**15), 2**15 + 1, PIECE) - (2**15 - 1)) * STEP
    entries: Entries = np.minimum(
        np.rint(np.exp(places) * (2**15 - 1)), 2**15 - 1
    ).astype(np.int64)
    return entries


def _largest(t: Tosa, x: Scaled, axis: int) -> Scaled:
    """Return the largest element along ``axis``, which keeps size 1.

    Halves the rest repeatedly: an NPU takes 9 cycles for each element of a REDUCE_MAX of
    int32, 5 of int8.
    """
    q = x.q
    count = x.shape[axis]
    while count > 1:
        half = math.ceil(count / 2)
        size = [half if a == axis else n for a, n in enumerate(q.shape)]
        starts = [
            [start if a == axis else 0 for a in range(q.rank)]
            for start in (0, count - half)
        ]
        first, second = (_wide(t, t.slice(q, start, size)) for start in starts)
        larger = t.maximum(first, second)
        q = (
            rescale(t, Scaled(larger, Scale(1.0)), 1.0, 0, q.dtype)
            if q.dtype is DType.INT8
            else larger
        )
        count = half
    return Scaled(q, x.scale, x.zero_point)


def _wide(t: Tosa, q: Value) -> Value:
    """q int8 as int32, by a RESCALE that NPUs fuse; int32 as it is."""
    return (
        q
        if q.dtype is DType.INT32
        else rescale(t, Scaled(q, Scale(1.0)), 1.0, 0, DType.INT32)
    )
