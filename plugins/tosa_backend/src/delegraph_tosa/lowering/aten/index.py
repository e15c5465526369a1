"""Reading the elements that indices name. GATHER takes rows [N,K,C] by indices [N,W].

An index outside of its axis is an error in torch; here it leaves the result open.
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
    """The type in which GATHER and SCATTER move elements: truth values pass as numbers, which they take."""
    if dtype is not DType.BOOL:
        return dtype
    return DType.INT8 if "INT" in t.spec.profiles else DType.FP32


def taken(t: Tosa, values: Value, indices: Value) -> Value:
    """values [N,K,C], indices [N,W] -> [N,W,C]"""
    moved = t.gather(converted(t, values, movable(t, values.dtype)), indices)
    return converted(t, moved, values.dtype)


def counted(t: Tosa, size: int, shape: Sequence[int]) -> Value:
    """0 .. size - 1, int64, in ``shape``"""
    return t.reshape(t.numbers(size, DType.INT64), shape)


def along(rank: int, axis: int, size: int) -> Shape:
    """A shape of ``rank`` axes, all of size 1 but ``axis``."""
    return tuple([size if a == axis else 1 for a in range(rank)])


def from_start(t: Tosa, index: Value, size: int) -> Value:
    """An index counted from the start of its axis; a negative one counts from the end in torch. int64"""
    index = converted(t, index, DType.INT64)
    if range_of(index)[0] >= 0:
        return index
    start = t.select(t.greater(0, index), t.like(size, index), 0)
    with t.proven(addresses((size,))):
        return t.add(index, start)


def addresses(shape: Shape) -> Range:
    """The range of the addresses of a tensor's elements. GATHER has them on one axis, which limits their number."""
    return 0, min(size_range(math.prod(shape))[1], LARGEST_SIZE) - 1


def addressed(t: Tosa, x: Value, dim: int, index: Value) -> tuple[Value, Value]:
    """x [*A,K,*B] as [N,K',1], and the addresses [N,W] in it of what ``index`` [*A',W',*B'] names along ``dim``.

    The axes before ``dim`` are the batch N if x and the index have the same ones; else N is 1.
    """
    axis = axis_of(dim, x.rank)
    batched = index.shape[:axis] == x.shape[:axis]
    batch = math.prod(x.shape[:axis]) if batched else 1
    strides = [math.prod(x.shape[a + 1 :]) for a in range(x.rank)]
    place = converted(t, index, DType.INT64)
    with t.proven(addresses(x.shape)):
        place = place if strides[axis] == 1 else t.mul(place, strides[axis])
        for a in range(axis if batched else 0, x.rank):
            if a != axis and index.shape[a] > 1:
                place = t.add(place, t.mul(counted(t, index.shape[a], along(x.rank, a, index.shape[a])), strides[a]))
    columns = t.reshape(x, (batch, math.prod(x.shape) // batch, 1))
    return columns, t.reshape(place, (batch, math.prod(index.shape) // batch))


def ranked_pair(t: Tosa, x: Value, index: Value) -> tuple[Value, Value]:
    """Both with at least one axis: torch takes a tensor without axes for one of size 1."""
    return t.ranked(x, max(x.rank, 1)), t.ranked(index, max(index.rank, 1))


class Rows(NamedTuple):
    """The rows [N,K,C] of a tensor that a list of indices can name, those [N,W] that it names, and the way back.

    ``order`` are the tensor's axes in the order of the rows, ``result`` is the shape of what is named: the batch, the
    shape of the indices, the rest.
    """

    values: Value
    places: Value
    order: list[int]
    result: Shape


def rows_of(t: Tosa, x: Value, indices: Sequence[Value | None]) -> Rows:
    """What ``x[indices]`` is about. Axes before the first index are the batch, if all indices are neighbours."""
    axes = [a for a, index in enumerate(indices) if index is not None]
    lead = list(range(axes[0])) if axes == list(range(axes[0], axes[-1] + 1)) else []
    order = [*lead, *axes, *(a for a in range(x.rank) if a not in {*lead, *axes})]
    x = t.transpose(x, order)
    batch, after = x.shape[: len(lead)], x.shape[len(lead) + len(axes) :]
    sizes = x.shape[len(lead) : len(lead) + len(axes)]
    place = _place(t, [index for index in indices if index is not None], sizes)
    n, count = math.prod(batch), math.prod(place.shape)
    places = t.tile(t.reshape(place, (1, count)), (n, 1))
    return Rows(t.reshape(x, (n, math.prod(sizes), math.prod(after))), places, order, (*batch, *place.shape, *after))


def _place(t: Tosa, indices: Sequence[Value], sizes: Shape) -> Value:
    """The indices of several axes as one index of all their elements; they broadcast."""
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
    """self [*S], several [*I] that broadcast -> [*A,*I,*B]; axes without an index stay, A is before the first one"""
    rows = rows_of(t, self, indices)
    return t.reshape(taken(t, rows.values, rows.places), rows.result)


@lowers(aten.gather.default, indexes={"index": positions("self", "dim")})
def gather(t: Tosa, self: Value, dim: int, index: Value, sparse_grad: bool) -> Value:
    """self [*A,K,*B], index [*A',W,*B'] -> [*A',W,*B']"""
    x, place = ranked_pair(t, self, index)
    return t.reshape(taken(t, *addressed(t, x, dim, place)), index.shape)


@lowers(aten.take.default, indexes={"index": elements("self")})
def take(t: Tosa, self: Value, index: Value) -> Value:
    """self [*S], index [*I] -> [*I]; the index is one of all elements"""
    flat = t.reshape(self, (math.prod(self.shape),))
    return index_tensor(t, flat, [index])


@lowers(aten.take_along_dim.default, indexes={"indices": positions("self", "dim", from_end=True)})
def take_along_dim(t: Tosa, self: Value, indices: Value, dim: int | None) -> Value:
    """self [*A,K,*B], indices [*A,W,*B], which broadcast -> [*A,W,*B]; both flat without a ``dim``"""
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
    """[*S] -> [*S,num_classes]; int64, 1 at the place of the element and else 0"""
    t.require(num_classes > 0, "the shape of one_hot without num_classes depends on the data")
    hit = t.equal(
        t.reshape(self, (*self.shape, 1)), counted(t, num_classes, along(self.rank + 1, self.rank, num_classes))
    )
    return converted(t, hit, DType.INT64)
