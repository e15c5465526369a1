"""Reading elements at indices: GATHER of values [N,K,C] at indices [N,W].

An index out of range is an error in torch; in TOSA its result is undefined. Rules
declare the range that torch accepts (``indexes``).
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
from ..geometry.layout import axis_of, flattened
from ..promotion import converted
from ..ranges.index_bounds import classes, each_axis, elements, positions, rows
from ..ranges.value_ranges import Range, range_of
from ..registry import lowers
from .shape import expanded, replace_axis

aten = torch.ops.aten

# ---- shared by reading and writing


def movable_type(t: Tosa, dtype: DType) -> DType:
    """Return the type in which GATHER and SCATTER move elements of ``dtype``.

    They do not take BOOL, which is moved as int8, or as fp32 without the profile INT.
    """
    if dtype is not DType.BOOL:
        return dtype
    return DType.INT8 if "INT" in t.spec.profiles else DType.FP32


def gathered(t: Tosa, values: Value, indices: Value) -> Value:
    """values [N,K,C], indices [N,W] -> [N,W,C] by GATHER, for any element type."""
    moved_type = movable_type(t, values.dtype)
    rows = t.gather(converted(t, values, moved_type), indices)
    return converted(t, rows, values.dtype)


def shape_along(rank: int, axis: int, size: int) -> Shape:
    """Return a shape of ``rank`` axes: ``size`` along ``axis``, 1 along all others."""
    shape = [1] * rank
    shape[axis] = size
    return tuple(shape)


def numbers_along(t: Tosa, size: int, axis: int, rank: int) -> Value:
    """Return 0 .. size - 1, int64, along ``axis`` of a tensor with ``rank`` axes.

    All other axes have size 1.
    """
    return t.reshape(t.numbers(size, DType.INT64), shape_along(rank, axis, size))


def from_start(t: Tosa, index: Value, size: int) -> Value:
    """Return ``index`` into an axis of ``size`` as int64, counted from the start.

    ``size`` is added to negative indices, which count from the end.
    """
    index = converted(t, index, DType.INT64)
    if range_of(index)[0] >= 0:
        return index
    is_negative = t.greater(0, index)
    start = t.select(is_negative, t.like(size, index), 0)
    with t.proven(_flat_indices((size,))):
        return t.add(index, start)


def _flat_indices(shape: Shape) -> Range:
    """Return the range of flat indices into a tensor of ``shape``.

    It ends at LARGEST_SIZE, even if the product of dynamic sizes could be larger.
    GATHER reads from one axis with all elements, and TOSA has no longer axis: such a
    file cannot run.
    """
    _, largest_count = size_range(math.prod(shape))
    return 0, min(largest_count, LARGEST_SIZE) - 1


class Addressed(NamedTuple):
    """The operands of a GATHER or SCATTER of single elements.

    ``elements`` [N,K',1] are those of a tensor in N batches. ``addresses`` [N,W] are
    flat indices into the K' elements of a batch.
    """

    elements: Value
    addresses: Value


def addressed(t: Tosa, x: Value, dim: int, index: Value) -> Addressed:
    """Return the operands of a GATHER that indexes x as ``torch.gather`` does.

    x is [*A,K,*B], ``index`` is [*A',W',*B']. Element (a, w, b) of the result is
    x[a, index[a, w, b], b]. Its address is the sum of these positions, each times the
    stride of its axis. If A' is A, these axes are the batch. Otherwise there is one
    batch, all of x.
    """
    axis = axis_of(dim, x.rank)
    is_batched = index.shape[:axis] == x.shape[:axis]
    first_axis = axis if is_batched else 0
    batch = math.prod(x.shape[:first_axis])
    strides = [math.prod(x.shape[a + 1 :]) for a in range(x.rank)]
    address = converted(t, index, DType.INT64)
    with t.proven(_flat_indices(x.shape)):
        if strides[axis] != 1:
            address = t.mul(address, strides[axis])
        for a in range(first_axis, x.rank):
            size = index.shape[a]
            if a != axis and size > 1:
                position = numbers_along(t, size, a, x.rank)
                address = t.add(address, t.mul(position, strides[a]))
    elements = t.reshape(x, (batch, math.prod(x.shape) // batch, 1))
    address = t.reshape(address, (batch, math.prod(index.shape) // batch))
    return Addressed(elements, address)


def ranked_pair(t: Tosa, x: Value, index: Value) -> tuple[Value, Value]:
    """Return x and index with at least one axis: torch treats a tensor [] as [1]."""
    x = t.ranked(x, max(x.rank, 1))
    return x, t.ranked(index, max(index.rank, 1))


class Rows(NamedTuple):
    """The operands of a GATHER or SCATTER for ``x[indices]``.

    ``values`` [N,K,C] is x transposed by ``order`` and reshaped: N are the batch axes,
    K the indexed axes, C all others. ``places`` [N,W] are the indices of the selected
    rows. ``result`` is the shape of ``x[indices]``: batch axes, the shape of the
    indices, the other axes.
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
    present = [index for index in indices if index is not None]
    axes = [a for a, index in enumerate(indices) if index is not None]
    first_indexed = axes[0]
    are_adjacent = axes == list(range(first_indexed, axes[-1] + 1))
    lead = list(range(first_indexed)) if are_adjacent else []
    trail = [a for a in range(x.rank) if a not in lead and a not in axes]
    batch = tuple([x.shape[a] for a in lead])
    indexed = tuple([x.shape[a] for a in axes])
    others = tuple([x.shape[a] for a in trail])
    order = [*lead, *axes, *trail]
    n = math.prod(batch)
    shape = (n, math.prod(indexed), math.prod(others))
    values = t.reshape(t.transpose(x, order), shape)
    # every batch uses the same places
    place = _joint_index(t, present, indexed)
    count = math.prod(place.shape)
    places = t.tile(t.reshape(place, (1, count)), (n, 1))
    return Rows(values, places, order, (*batch, *place.shape, *others))


def _joint_index(t: Tosa, indices: Sequence[Value], sizes: Shape) -> Value:
    """Return one index into flattened axes of ``sizes``, from one index for each axis.

    Indices i, j, k into sizes (A, B, C) become (i * B + j) * C + k. They broadcast.
    Raises Unsupported for a mask (an index of type bool).
    """
    joint: Value | None = None
    for index, size in zip(indices, sizes, strict=True):
        t.refuse_unless(
            index.dtype is not DType.BOOL,
            "the number of elements that a mask selects depends on the data",
        )
        position = from_start(t, index, size)
        if joint is None:
            joint = position
            continue
        with t.proven(_flat_indices(sizes)):
            joint = t.add(t.mul(joint, size), position)
    assert joint is not None
    return joint


# ---- rules


@lowers(aten.embedding.default, indexes={"indices": rows("weight")})
def embedding(t: Tosa, weight: Value, indices: Value, padding_idx: int) -> Value:
    """weight [K,C], indices [*S] -> [*S,C]"""
    rows, width = weight.shape
    table = t.reshape(weight, (1, rows, width))
    places = t.reshape(indices, (1, math.prod(indices.shape)))
    selected = gathered(t, table, places)
    return t.reshape(selected, (*indices.shape, width))


@lowers(aten.index_select.default, indexes={"index": positions("self", "dim")})
def index_select(t: Tosa, self: Value, dim: int, index: Value) -> Value:
    """self [*A,K,*B], index [W] -> [*A,W,*B]"""
    if self.rank == 0:
        return self
    axes_before = axis_of(dim, self.rank)
    indices = [None] * axes_before + [t.ranked(index, 1)]
    rows = rows_of(t, self, indices)
    return t.reshape(gathered(t, rows.values, rows.places), rows.result)


@lowers(
    aten.index.Tensor, aten._unsafe_index.Tensor, indexes={"indices": each_axis("self")}
)
def index_tensor(t: Tosa, self: Value, indices: Sequence[Value | None]) -> Value:
    """self [*S], several indices [*I] that broadcast -> [*A,*I,*B]; A and B are the
    axes without an index
    """
    rows = rows_of(t, self, indices)
    return t.reshape(gathered(t, rows.values, rows.places), rows.result)


@lowers(aten.gather.default, indexes={"index": positions("self", "dim")})
def gather(t: Tosa, self: Value, dim: int, index: Value) -> Value:
    """self [*A,K,*B], index [*A',W,*B'] -> [*A',W,*B']"""
    x, place = ranked_pair(t, self, index)
    elements, addresses = addressed(t, x, dim, place)
    return t.reshape(gathered(t, elements, addresses), index.shape)


@lowers(aten.take.default, indexes={"index": elements("self")})
def take(t: Tosa, self: Value, index: Value) -> Value:
    """self [*S], index [*I] -> [*I]; an index into self as if it had one axis"""
    flat = flattened(t, self)
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
        x = flattened(t, self)
        place = flattened(t, indices)
    else:
        axis = axis_of(dim, self.rank)
        # all axes but ``axis`` broadcast: [2,1,5] and [1,3,4] along 2 become [2,3,5]
        # and [2,3,4]
        others = np.broadcast_shapes(
            replace_axis(self.shape, axis, 1), replace_axis(indices.shape, axis, 1)
        )
        x = expanded(t, self, replace_axis(others, axis, self.shape[axis]))
        place = expanded(t, indices, replace_axis(others, axis, indices.shape[axis]))
    place = from_start(t, place, x.shape[axis])
    elements, addresses = addressed(t, x, axis, place)
    return t.reshape(gathered(t, elements, addresses), place.shape)


@lowers(aten.one_hot.default, indexes={"self": classes("num_classes")})
def one_hot(t: Tosa, self: Value, num_classes: int) -> Value:
    """[*S] -> [*S,num_classes]; int64: 1 at the position that an element names, else 0"""
    t.refuse_unless(
        num_classes > 0, "the shape of one_hot without num_classes depends on the data"
    )
    named = t.reshape(self, (*self.shape, 1))
    positions = numbers_along(t, num_classes, axis=self.rank, rank=self.rank + 1)
    return converted(t, t.equal(named, positions), DType.INT64)
