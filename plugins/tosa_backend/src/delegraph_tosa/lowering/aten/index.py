"""Reading elements at indices. GATHER takes rows [N,K,C] by indices [N,W].

An index out of range is an error in torch. Here its result is not defined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from ...ir.graph import Value
from ...ir.sizes import LARGEST_SIZE
from ...ir.sizes import range_of as size_range
from ...ir.types import DType
from ..builder import Shape, Tosa
from ..geometry.layout import axis_of
from ..promotion import converted
from ..ranges.indexes import classes, each_axis, elements, positions, rows
from ..ranges.ranges import Range, range_of
from ..registry import lowers
from .shape import expanded

aten = torch.ops.aten

# ---- what reading and writing share


def movable(t: Tosa, dtype: DType) -> DType:
    """The type in which GATHER and SCATTER move elements of ``dtype``.

    They do not take BOOL, so that moves as numbers.
    """
    if dtype is not DType.BOOL:
        return dtype
    return DType.INT8 if "INT" in t.spec.profiles else DType.FP32


def taken(t: Tosa, values: Value, indices: Value) -> Value:
    """Rows of values [N,K,C] at indices [N,W] -> [N,W,C], for any element type."""
    moved = t.gather(converted(t, values, movable(t, values.dtype)), indices)
    return converted(t, moved, values.dtype)


def counted(t: Tosa, size: int, shape: Sequence[int]) -> Value:
    """The numbers 0 .. size - 1, int64, reshaped to ``shape``."""
    return t.reshape(t.numbers(size, DType.INT64), shape)


def along(rank: int, axis: int, size: int) -> Shape:
    """A shape of ``rank`` axes: ``size`` for ``axis``, 1 for all others."""
    return tuple([size if a == axis else 1 for a in range(rank)])


def from_start(t: Tosa, index: Value, size: int) -> Value:
    """An index counted from the start of its axis, as int64. torch lets negative ones count from the end."""
    index = converted(t, index, DType.INT64)
    if range_of(index)[0] >= 0:
        return index
    start = t.select(t.greater(0, index), t.like(size, index), 0)
    with t.proven(addresses((size,))):
        return t.add(index, start)


def addresses(shape: Shape) -> Range:
    """The range of addresses: positions among all elements of a tensor.

    GATHER has them along one axis, which limits them.
    """
    return 0, min(size_range(math.prod(shape))[1], LARGEST_SIZE) - 1


def addressed(t: Tosa, x: Value, dim: int, index: Value) -> tuple[Value, Value]:
    """Values and indices with which GATHER reads x [*A,K,*B] at ``index`` [*A',W',*B'] along ``dim``.

    Values are x as [N,K',1]. Indices are addresses [N,W] in them. N is the product of the axes before ``dim`` if x and
    the index agree in these, so that they need not be part of the addresses; else N is 1.
    """
    axis = axis_of(dim, x.rank)
    batched = index.shape[:axis] == x.shape[:axis]
    batch = math.prod(x.shape[:axis]) if batched else 1
    strides = [math.prod(x.shape[a + 1 :]) for a in range(x.rank)]
    place = converted(t, index, DType.INT64)
    with t.proven(addresses(x.shape)):
        # address = sum of position * stride over the axes that are not in the batch
        place = place if strides[axis] == 1 else t.mul(place, strides[axis])
        for a in range(axis if batched else 0, x.rank):
            if a != axis and index.shape[a] > 1:
                place = t.add(place, t.mul(counted(t, index.shape[a], along(x.rank, a, index.shape[a])), strides[a]))
    columns = t.reshape(x, (batch, math.prod(x.shape) // batch, 1))
    return columns, t.reshape(place, (batch, math.prod(index.shape) // batch))


def ranked_pair(t: Tosa, x: Value, index: Value) -> tuple[Value, Value]:
    """x and index with at least one axis: torch takes a tensor without axes for one of size 1."""
    return t.ranked(x, max(x.rank, 1)), t.ranked(index, max(index.rank, 1))


class Rows(NamedTuple):
    """A tensor in the form in which GATHER and SCATTER take the rows that ``x[indices]`` names.

    ``values`` [N,K,C] are all rows, ``places`` [N,W] are those that are named. ``order`` is the permutation of the axes
    that leads to the rows. ``result`` is the shape of what is named: the batch, the shape of the indices, the rest.
    """

    values: Value
    places: Value
    order: list[int]
    result: Shape


def rows_of(t: Tosa, x: Value, indices: Sequence[Value | None]) -> Rows:
    """The rows that ``x[indices]`` names; None stands for a whole axis.

    If the indexed axes are neighbours, those before them are the batch; else there is none, as in torch's results.
    """
    axes = [a for a, index in enumerate(indices) if index is not None]
    lead = list(range(axes[0])) if axes == list(range(axes[0], axes[-1] + 1)) else []
    order = [*lead, *axes, *(a for a in range(x.rank) if a not in {*lead, *axes})]
    x = t.transpose(x, order)
    batch, after = x.shape[: len(lead)], x.shape[len(lead) + len(axes) :]
    sizes = x.shape[len(lead) : len(lead) + len(axes)]
    place = _joint_index(t, [index for index in indices if index is not None], sizes)
    n, count = math.prod(batch), math.prod(place.shape)
    places = t.tile(t.reshape(place, (1, count)), (n, 1))
    return Rows(t.reshape(x, (n, math.prod(sizes), math.prod(after))), places, order, (*batch, *place.shape, *after))


def _joint_index(t: Tosa, indices: Sequence[Value], sizes: Shape) -> Value:
    """Indices into several axes, which broadcast, as one index into these axes flattened."""
    place: Value | None = None
    for index, size in zip(indices, sizes, strict=True):
        t.require(index.dtype is not DType.BOOL, "the shape of what a mask selects depends on the data")
        own = from_start(t, index, size)
        with t.proven(addresses(sizes)):
            place = own if place is None else t.add(t.mul(place, size), own)
    assert place is not None
    return place


# ---- rules


@lowers(aten.embedding.default, indexes={"indices": rows("weight")})
def embedding(
    t: Tosa, weight: Value, indices: Value, padding_idx: int, scale_grad_by_freq: bool, sparse: bool
) -> Value:
    """weight [K,C], indices [*S] -> [*S,C]"""
    rows, width = weight.shape
    picked = taken(t, t.reshape(weight, (1, rows, width)), t.reshape(indices, (1, math.prod(indices.shape))))
    return t.reshape(picked, (*indices.shape, width))


@lowers(aten.index_select.default, indexes={"index": positions("self", "dim")})
def index_select(t: Tosa, self: Value, dim: int, index: Value) -> Value:
    """self [*A,K,*B], index [W] -> [*A,W,*B]"""
    if self.rank == 0:
        return self
    rows = rows_of(t, self, [None] * axis_of(dim, self.rank) + [t.ranked(index, 1)])
    return t.reshape(taken(t, rows.values, rows.places), rows.result)


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor, indexes={"indices": each_axis("self")})
def index_tensor(t: Tosa, self: Value, indices: Sequence[Value | None]) -> Value:
    """self [*S], several indices [*I] that broadcast -> [*A,*I,*B]; axes without an index stay, those of A
    before the first index
    """
    rows = rows_of(t, self, indices)
    return t.reshape(taken(t, rows.values, rows.places), rows.result)


@lowers(aten.gather.default, indexes={"index": positions("self", "dim")})
def gather(t: Tosa, self: Value, dim: int, index: Value, sparse_grad: bool) -> Value:
    """self [*A,K,*B], index [*A',W,*B'] -> [*A',W,*B']"""
    x, place = ranked_pair(t, self, index)
    return t.reshape(taken(t, *addressed(t, x, dim, place)), index.shape)


@lowers(aten.take.default, indexes={"index": elements("self")})
def take(t: Tosa, self: Value, index: Value) -> Value:
    """self [*S], index [*I] -> [*I]; the index counts through all elements"""
    flat = t.reshape(self, (math.prod(self.shape),))
    return index_tensor(t, flat, [index])


@lowers(aten.take_along_dim.default, indexes={"indices": positions("self", "dim", from_end=True)})
def take_along_dim(t: Tosa, self: Value, indices: Value, dim: int | None) -> Value:
    """self [*A,K,*B], indices [*A,W,*B], which broadcast -> [*A,W,*B]; without a ``dim`` both are flattened"""
    if dim is None:
        x, place, axis = t.reshape(self, (math.prod(self.shape),)), t.reshape(indices, (math.prod(indices.shape),)), 0
    else:
        axis = axis_of(dim, self.rank)
        others = np.broadcast_shapes(*[(*v.shape[:axis], 1, *v.shape[axis + 1 :]) for v in (self, indices)])
        sized = [(*others[:axis], v.shape[axis], *others[axis + 1 :]) for v in (self, indices)]
        x, place = expanded(t, self, sized[0]), expanded(t, indices, sized[1])
    place = from_start(t, place, x.shape[axis])
    return t.reshape(taken(t, *addressed(t, x, axis, place)), place.shape)


@lowers(aten.one_hot.default, indexes={"self": classes("num_classes")})
def one_hot(t: Tosa, self: Value, num_classes: int) -> Value:
    """[*S] -> [*S,num_classes]; int64, 1 where the position is the element, else 0"""
    t.require(num_classes > 0, "the shape of one_hot without num_classes depends on the data")
    hit = t.equal(
        t.reshape(self, (*self.shape, 1)), counted(t, num_classes, along(self.rank + 1, self.rank, num_classes))
    )
    return converted(t, hit, DType.INT64)
