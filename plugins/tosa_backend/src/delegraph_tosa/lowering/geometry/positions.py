"""Elements at constant positions, by one GATHER."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...ir.graph import Value
from ...ir.types import DType
from ..builder import Tosa

LARGEST = 1 << 20
"""The most positions of one GATHER: they are a constant in the file."""


def picked(t: Tosa, x: Value, axis: int, positions: Any) -> Value:
    """x [*A,N,*B], numpy ``positions`` [*P] along ``axis`` -> [*A,*P,*B].

    Raises Unsupported for more than LARGEST.
    """
    places = np.asarray(positions)
    t.require(
        places.size <= LARGEST,
        f"{places.size} constant positions are more than the {LARGEST} that are"
        " lowered",
    )
    if x.dtype is DType.BOOL:  # GATHER takes numbers only
        return t.cast(picked(t, t.cast(x, DType.INT8), axis, places), DType.BOOL)
    before = math.prod(x.shape[:axis])
    after = math.prod(x.shape[axis + 1 :])
    # GATHER reads rows [1,N,C] along the middle axis: ``axis`` becomes the middle one,
    # all others the last one
    rows = t.transpose(t.reshape(x, (before, x.shape[axis], after)), (1, 0, 2))
    index = t.literal(places.reshape(1, -1).astype(np.int32), DType.INT32)
    selected = t.gather(t.reshape(rows, (1, x.shape[axis], before * after)), index)
    y = t.transpose(t.reshape(selected, (places.size, before, after)), (1, 0, 2))
    return t.reshape(y, (*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]))


def rearranged(t: Tosa, x: Value, positions: Any) -> Value:
    """x [*S], numpy ``positions`` [*P], flat indices into x -> [*P]"""
    return picked(t, t.reshape(x, (math.prod(x.shape),)), 0, positions)


def numbered(shape: tuple[int, ...]) -> Any:
    """numpy 0, 1, 2, .. in ``shape``.

    After numpy has moved them, ``rearranged`` moves a tensor in the same way.
    """
    return np.arange(math.prod(shape)).reshape(shape)
