"""Reading elements at indices: GATHER of values [N,K,C] at indices [N,W].

An index out of range is an error in torch; in TOSA its result is undefined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from ...ir.dynamic_sizes import LARGEST_SIZE
from ...ir.dynamic_sizes import range_of as size_range
from ...ir.graph import Value
from ...ir.types import DType
from ..builder import Shape, Tosa
from ..geometry.layout import axis_of
from ..promotion import converted
from ..ranges.index_bounds import classes, each_axis, elements, positions, rows
from ..ranges.value_ranges import Range, range_of
from ..registry import lowers
from .shape import expanded

aten = torch.ops.aten

# ---- shared by reading and writing


def movable(t: Tosa, dtype: DType) -> DType:
    """Return the type in which GATHER and SCATTER move ``dtype``: a number for BOOL."""
    if dtype is not DType.BOOL:
        return dtype
    return DType.INT8 if "INT" in t.spec.profiles else DType.FP32


def taken(t: Tosa, values: Value, indices: Value) -> Value:
    """values [N,K,C], indices [N,W] -> [N,W,C] by GATHER, for any element type."""
    moved = t.gather(converted(t, values, movable(t, values.dtype)), indices)
    return converted(t, moved, values.dtype)


def counted(t: Tosa, size: int, shape: Sequence[int]) -> Value:
    """Return the numbers 0 .. size - 1, int64, reshaped to ``shape``."""
    return t.reshape(t.numbers(size, DType.INT64), shape)


def along(rank: int, axis: int, size: int) -> Shape:
    """Return a shape of ``rank`` axes: ``size`` along ``axis``, 1 along all others."""
    return tuple([size if a == axis else 1 for a in range(rank)])


def without_axis(t: Tosa, y: Value, axis: int) -> Value:
    """Return y without the axis ``axis``, which has size 1."""
    return t.reshape(y, (*y.shape[:axis], *y.shape[axis + 1 :]))


def from_start(t: Tosa, index: Value, size: int) -> Value:
    """Return ``index`` into an axis of ``size`` as int64, without negative numbers."""
    index = converted(t, index, DType.INT64)
    if range_of(index)[0] >= 0:
        return index
    start = t.select(t.greater(0, index), t.like(size, index), 0)
    with t.proven(addresses((size,))):
        return t.add(index, start)


def addresses(shape: Shape) -> Range:
    """Return the range of flat indices into a tensor of ``shape``.

    GATHER reads from an axis that has all elements, and TOSA has no axis longer than
    LARGEST_SIZE. So dynamic sizes with a product that could be larger are
    small enough whenever the file runs.
    """
    return 0, min(size_range(math.prod(shape))[1], LARGEST_SIZE) - 1


def addressed(t: Tosa, x: Value, dim: int, index: Value) -> tuple[Value, Value]:
    """Return GATHER's values [N,K',1] and indices [N,W], to index x along ``dim``.

    x is [*A,K,*B], ``index`` is [*A',W',*B']. Indices are addresses, flat indices into
    the elements of one batch. If x and ``index`` have the same axes before ``dim``, N
    is their product; else N is 1, and the addresses count through all of x.
    """
    axis = axis_of(dim, x.rank)
    batched = index.shape[:axis] == x.shape[:axis]
    batch = math.prod(x.shape[:axis]) if batched else 1
    strides = [math.prod(x.shape[a + 1 :]) for a in range(x.rank)]
    address = converted(t, index, DType.INT64)
    with t.proven(addresses(x.shape)):
        # address = sum of position * stride over the axes that are not in the batch
        address = address if strides[axis] == 1 else t.mul(address, strides[axis])
        for a in range(axis if batched else 0, x.rank):
            if a != axis and index.shape[a] > 1:
                position = counted(t, index.shape[a], along(x.rank, a, index.shape[a]))
                address = t.add(address, t.mul(position, strides[a]))
    elements = t.reshape(x, (batch, math.prod(x.shape) // batch, 1))
    return elements, t.reshape(address, (batch, math.prod(index.shape) // batch))


def ranked_pair(t: Tosa, x: Value, index: Value) -> tuple[Value, Value]:
    """Return x and index with at least one axis: torch treats a tensor [] as [1]."""
    return t.ranked(x, max(x.rank, 1)), t.ranked(index, max(index.rank, 1))


class Rows(NamedTuple):
    """The operands of a GATHER or SCATTER for ``x[indices]``.

    ``values`` [N,K,C] is x transposed by ``order`` and reshaped; ``places`` [N,W] are
    the indices of the selected rows. ``result`` is the shape of ``x[indices]``: batch
    axes, the shape of the indices, the other axes.
    """

    values: Value
    places: Value
    order: list[int]
    result: Shape


def rows_of(t: Tosa, x: Value, indices: Sequence[Value | None]) -> Rows:
    """Return the rows that ``x[indices]`` selects.

    An index of None selects a whole axis. If the indexed axes are adjacent, the axes
    before them are the batch. Otherwise there is no batch: torch puts the axes of the
    indices first in the result.
    """
    axes = [a for a, index in enumerate(indices) if index is not None]
    are_adjacent = axes == list(range(axes[0], axes[-1] + 1))
    lead = list(range(axes[0])) if are_adjacent else []
    order = [*lead, *axes, *(a for a in range(x.rank) if a not in {*lead, *axes})]
    x = t.transpose(x, order)
    # of the indexed axes
    first = len(lead)
    end = len(lead) + len(axes)
    batch = x.shape[:first]
    sizes = x.shape[first:end]
    after = x.shape[end:]
    # the indexed axes become one, of which ``place`` selects rows; every batch n uses
    # the same places
    place = _joint_index(t, [index for index in indices if index is not None], sizes)
    n = math.prod(batch)
    count = math.prod(place.shape)
    places = t.tile(t.reshape(place, (1, count)), (n, 1))
    rows = t.reshape(x, (n, math.prod(sizes), math.prod(after)))
    return Rows(rows, places, order, (*batch, *place.shape, *after))


def _joint_index(t: Tosa, indices: Sequence[Value], sizes: Shape) -> Value:
    """Return one index into flattened axes of ``sizes``, from one index for each axis.

    The indices broadcast. Raises Unsupported for a mask (an index of type bool).
    """
    joint: Value | None = None
    for index, size in zip(indices, sizes, strict=True):
        t.require(
            index.dtype is not DType.BOOL,
            "the number of elements that a mask selects depends on the data",
        )
        position = from_start(t, index, size)
        with t.proven(addresses(sizes)):
            joint = position if joint is None else t.add(t.mul(joint, size), position)
    assert joint is not None
    return joint


# ---- rules


@lowers(aten.embedding.default, indexes={"indices": rows("weight")})
def embedding(t: Tosa, weight: Value, indices: Value, padding_idx: int) -> Value:
    """weight [K,C], indices [*S] -> [*S,C]"""
    rows, width = weight.shape
    picked = taken(
        t,
        t.reshape(weight, (1, rows, width)),
        t.reshape(indices, (1, math.prod(indices.shape))),
    )
    return t.reshape(picked, (*indices.shape, width))


@lowers(aten.index_select.default, indexes={"index": positions("self", "dim")})
def index_select(t: Tosa, self: Value, dim: int, index: Value) -> Value:
    """self [*A,K,*B], index [W] -> [*A,W,*B]"""
    if self.rank == 0:
        return self
    rows = rows_of(t, self, [None] * axis_of(dim, self.rank) + [t.ranked(index, 1)])
    return t.reshape(taken(t, rows.values, rows.places), rows.result)


@lowers(
    aten.index.Tensor, aten._unsafe_index.Tensor, indexes={"indices": each_axis("self")}
)
def index_tensor(t: Tosa, self: Value, indices: Sequence[Value | None]) -> Value:
    """self [*S], several indices [*I] that broadcast -> [*A,*I,*B]; A and B are the
    axes without an index
    """
    rows = rows_of(t, self, indices)
    return t.reshape(taken(t, rows.values, rows.places), rows.result)


@lowers(aten.gather.default, indexes={"index": positions("self", "dim")})
def gather(t: Tosa, self: Value, dim: int, index: Value) -> Value:
    """self [*A,K,*B], index [*A',W,*B'] -> [*A',W,*B']"""
    x, place = ranked_pair(t, self, index)
    return t.reshape(taken(t, *addressed(t, x, dim, place)), index.shape)


@lowers(aten.take.default, indexes={"index": elements("self")})
def take(t: Tosa, self: Value, index: Value) -> Value:
    """self [*S], index [*I] -> [*I]; an index into self as if it had one axis"""
    flat = t.reshape(self, (math.prod(self.shape),))
    return index_tensor(t, flat, [index])


@lowers(
    aten.take_along_dim.default,
    indexes={"indices": positions("self", "dim", from_end=True)},
)
def take_along_dim(t: Tosa, self: Value, indices: Value, dim: int | None) -> Value:
    """self [*A,K,*B], indices [*A,W,*B], which broadcast -> [*A,W,*B]; without a
    ``dim`` both are flattened
    """
    if dim is None:
        axis = 0
        x, place = (t.reshape(v, (math.prod(v.shape),)) for v in (self, indices))
    else:
        axis = axis_of(dim, self.rank)
        # all axes but ``axis`` broadcast: [2,1,5] and [1,3,4] along 2 become [2,3,5]
        # and [2,3,4]
        others = np.broadcast_shapes(
            *[(*v.shape[:axis], 1, *v.shape[axis + 1 :]) for v in (self, indices)]
        )
        x, place = (
            expanded(t, v, (*others[:axis], v.shape[axis], *others[axis + 1 :]))
            for v in (self, indices)
        )
    place = from_start(t, place, x.shape[axis])
    return t.reshape(taken(t, *addressed(t, x, axis, place)), place.shape)


@lowers(aten.one_hot.default, indexes={"self": classes("num_classes")})
def one_hot(t: Tosa, self: Value, num_classes: int) -> Value:
    """[*S] -> [*S,num_classes]; int64: 1 at the position that an element names, else 0"""
    t.require(
        num_classes > 0, "the shape of one_hot without num_classes depends on the data"
    )
    hit = t.equal(
        t.reshape(self, (*self.shape, 1)),
        counted(t, num_classes, along(self.rank + 1, self.rank, num_classes)),
    )
    return converted(t, hit, DType.INT64)
