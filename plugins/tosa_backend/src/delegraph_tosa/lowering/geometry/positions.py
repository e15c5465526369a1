"""Picking elements at positions that are known when a program is lowered: one GATHER with constant indices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...ir.graph import Value, literal
from ...ir.types import DType
from ..builder import Tosa

LARGEST = 1 << 20
"""The most positions that one operator may have; more would make too large a constant in the file."""


def picked(t: Tosa, x: Value, axis: int, positions: Any) -> Value:
    """The elements of ``x`` at constant ``positions`` along ``axis``: x [*A,N,*B], positions [*P] -> [*A,*P,*B]"""
    places = np.asarray(positions)
    t.require(places.size <= LARGEST, f"{places.size} constant positions are more than the {LARGEST} that are lowered")
    if x.dtype is DType.BOOL:  # which GATHER does not take
        return t.cast(picked(t, t.cast(x, DType.INT8), axis, places), DType.BOOL)
    before, after = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    # GATHER takes rows of the middle axis: bring the axis there, with all others behind it
    rows = t.transpose(t.reshape(x, (before, x.shape[axis], after)), (1, 0, 2))
    index = literal(places.reshape(1, -1), DType.INT32, np.int32)
    chosen = t.gather(t.reshape(rows, (1, x.shape[axis], before * after)), index)
    columns = t.transpose(t.reshape(chosen, (places.size, before, after)), (1, 0, 2))
    return t.reshape(columns, (*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]))


def rearranged(t: Tosa, x: Value, positions: Any) -> Value:
    """The elements of ``x`` at ``positions``, counted in the order of memory: x [*S], positions [*P] -> [*P]"""
    return picked(t, t.reshape(x, (math.prod(x.shape),)), 0, positions)


def numbered(shape: tuple[int, ...]) -> Any:
    """0, 1, 2, .. in the tensor's shape.

    Numpy moves them about, and ``rearranged`` then does the same to the elements.
    """
    return np.arange(math.prod(shape)).reshape(shape)
