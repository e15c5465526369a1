"""Softmax with 16 bits, for NPUs that rescale operands and results at no cost.

``softmax`` keeps 23 bits and more in int32. On such an NPU, one of its operators takes
as long as this whole softmax (docs/decisions/0028). Results of 8 bits do not show the
difference: a TABLE of int16 interpolates exp with an error below 1e-4, and the division
by the sum of the row cancels most of it.
"""

from __future__ import annotations

import math

import numpy as np

from ...ir.dynamic_sizes import is_dynamic
from ...ir.graph import Value, literal
from ...ir.types import DType
from ..aten.shape import slice_axis
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
"""Distances are computed in steps of STEP / 2**FINER, and then rounded to STEP."""
FAR = 2.0**28
"""The most finer steps that an element may be away from 0."""
COUNT = 256
"""The most elements in a row, for a reciprocal of their sum that is exact to 0.4 %."""
SHARE = 15
"""Fraction bits of a share."""


LAST = 2**15 - 1
"""The largest int16: the index of exp(0), and its entry."""


def takes_int16_softmax(t: Tosa, x: Scaled, axis: int) -> bool:
    """Return whether the target and x allow a softmax with 16 bits along ``axis``.

    The rows must be short enough, and the elements near enough to 0.
    """
    if not DEVICES & t.spec.devices or "int16" not in t.spec.extensions:
        return False
    count = x.shape[axis]
    if is_dynamic(count) or count > COUNT:
        return False
    finer_steps: float = x.reach(t) * 2**FINER / STEP
    return finer_steps < FAR


def int16_shares(t: Tosa, x: Scaled, axis: int, seen: Value | None = None) -> Scaled:
    """Return the softmax of x [*S] along ``axis``, as int32.

    Elements where ``seen``, bool, is false have the share 0; None hides no element.
    Equal RESCALEs are emitted once for each reader, because NPUs fuse only a RESCALE
    with a single reader.
    """
    elements = _fine(t, x)
    largest = _fine(t, _largest(t, x, axis))
    distance = t.sub(elements, largest)
    # the largest element gets the last index
    raised = t.add(distance, LAST << FINER)
    index = rescale(t, Scaled(raised, Scale(2.0**-FINER)), 1.0, 0, DType.INT16)
    table = literal(_exponentials(), DType.INT16, np.int16)
    looked_up = t.table(index, table)
    e = rescale(t, Scaled(looked_up, Scale(1 / PIECE)), 1.0, 0, DType.INT16)
    if seen is not None:
        e = t.select(seen, e, 0)
    total = t.reduce_sum(_in_type(t, e, DType.INT32), axis)
    # the exp of the largest element is LAST, unless the whole row is hidden
    inverse = reciprocal(t, t.maximum(total, LAST), iterations=2)
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
    indices = np.arange(-(2**15), 2**15 + 1, PIECE)
    exponentials = np.exp((indices - LAST) * STEP)
    rounded = np.rint(exponentials * LAST)
    entries: Entries = np.minimum(rounded, LAST).astype(np.int64)
    return entries


def _largest(t: Tosa, x: Scaled, axis: int) -> Scaled:
    """Return the largest element along ``axis``, which keeps size 1.

    Takes the larger elements of two halves until one is left. A REDUCE_MAX is slower:
    an NPU takes 9 cycles for each element of int32, 5 of int8.
    """
    q = x.q
    count = x.shape[axis]
    while count > 1:
        half = math.ceil(count / 2)
        # the halves overlap if ``count`` is odd
        first = _in_type(t, slice_axis(t, q, axis, 0, half), DType.INT32)
        second = _in_type(t, slice_axis(t, q, axis, count - half, half), DType.INT32)
        larger = t.maximum(first, second)
        q = _in_type(t, larger, q.dtype)
        count = half
    return x.with_integers(q)


def _in_type(t: Tosa, q: Value, dtype: DType) -> Value:
    """Return ``q`` in another integer type, by a RESCALE that NPUs fuse.

    Returns ``q`` itself if it has the type.
    """
    if q.dtype is dtype:
        return q
    return rescale(t, Scaled(q, Scale(1.0)), 1.0, 0, dtype)
