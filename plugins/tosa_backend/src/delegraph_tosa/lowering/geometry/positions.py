"""Elements at constant positions, by one GATHER."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...ir.graph import Value
from ...ir.types import DType
from ..builder import Tosa
from .layout import flattened

LARGEST = 1 << 20
"""The most positions of one GATHER: they are a constant in the file."""


def picked(t: Tosa, x: Value, axis: int, positions: Any) -> Value:
    """x [*A,N,*B], numpy ``positions`` [*P] along ``axis`` -> [*A,*P,*B].

    Raises Unsupported for more positions than LARGEST.
    """
    places = np.asarray(positions)
    t.refuse_unless(
        places.size <= LARGEST,
        f"{places.size} constant positions are more than the {LARGEST} that are"
        " lowered",
    )
    if x.dtype is DType.BOOL:  # GATHER takes numbers only
        numbers = t.cast(x, DType.INT8)
        return t.cast(picked(t, numbers, axis, places), DType.BOOL)
    sizes_before = x.shape[:axis]
    sizes_after = x.shape[axis + 1 :]
    before = math.prod(sizes_before)
    after = math.prod(sizes_after)
    size = x.shape[axis]
    # GATHER reads rows [1,N,C] along the middle axis: ``axis`` becomes the middle one,
    # all others the last one
    axis_first = t.transpose(t.reshape(x, (before, size, after)), (1, 0, 2))
    flat = places.reshape(1, -1).astype(np.int32)
    index = t.literal(flat, DType.INT32)
    rows = t.reshape(axis_first, (1, size, before * after))
    selected = t.reshape(t.gather(rows, index), (places.size, before, after))
    y = t.transpose(selected, (1, 0, 2))
    return t.reshape(y, (*sizes_before, *places.shape, *sizes_after))


def rearranged(t: Tosa, x: Value, positions: Any) -> Value:
    """x [*S], numpy ``positions`` [*P], flat indices into x -> [*P]"""
    flat = flattened(t, x)
    return picked(t, flat, 0, positions)


def numbered(shape: tuple[int, ...]) -> Any:
    """Return numpy's 0, 1, 2, .. in ``shape``.

    After numpy has moved them, ``rearranged`` moves a tensor in the same way.
    """
    count = math.prod(shape)
    return np.arange(count).reshape(shape)
