"""Operators that move elements: reshape, permute, concatenate, slice, repeat.

They take every element type that the target can move.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...ir.dynamic_sizes import exceeds, is_dynamic
from ...ir.graph import Value
from ...ir.types import Type
from ..builder import Shape, Tosa
from ..geometry.layout import axis_of
from ..promotion import common_type, converted
from ..registry import lowers
from ..torch_values.hints import by_size
from .conv import concatenated

aten = torch.ops.aten


def replace_axis(shape: Shape, axis: int, *sizes: int) -> Shape:
    """Return ``shape`` with ``sizes`` in place of the size of ``axis``.

    ``replace_axis((2, 6, 4), 1, 3, 2)`` is (2, 3, 2, 4). Without ``sizes``, the axis is
    removed.
    """
    return (*shape[:axis], *sizes, *shape[axis + 1 :])


# ---- the same elements in another shape


def _without_minus_one(size: Sequence[int], elements: int) -> list[int]:
    """Return ``size`` with -1 replaced so that the product is ``elements``.

    The size [2, -1] of 6 elements is [2, 3].
    """
    if -1 not in size:
        return list(size)
    known = math.prod([n for n in size if n != -1])
    inferred = elements // known
    return [inferred if n == -1 else n for n in size]


@lowers(aten.view.default, aten._unsafe_view.default, aten.view_copy.default)
def view(t: Tosa, self: Value, size: Sequence[int]) -> Value:
    """[*S] -> [*S']"""
    return t.reshape(self, _without_minus_one(size, math.prod(self.shape)))


@lowers(aten.reshape.default)
def reshape(t: Tosa, self: Value, shape: Sequence[int]) -> Value:
    """[*S] -> [*S']"""
    return t.reshape(self, _without_minus_one(shape, math.prod(self.shape)))


@lowers(aten.view_as.default)
def view_as(t: Tosa, self: Value, other: Type) -> Value:
    """[*S] -> [*S'], the shape of ``other``"""
    return t.reshape(self, other.shape)


@lowers(aten.flatten.using_ints)
def flatten(t: Tosa, self: Value, start_dim: int, end_dim: int) -> Value:
    """[*A,*S,*B] -> [*A,product of S,*B]"""
    start = axis_of(start_dim, self.rank)
    end = axis_of(end_dim, self.rank)
    flat = math.prod(self.shape[start : end + 1])
    return t.reshape(self, (*self.shape[:start], flat, *self.shape[end + 1 :]))


@lowers(aten.unflatten.int)
def unflatten(t: Tosa, self: Value, dim: int, sizes: Sequence[int]) -> Value:
    """[*A,N,*B] -> [*A,*S,*B]"""
    axis = axis_of(dim, self.rank)
    inner = _without_minus_one(sizes, self.shape[axis])
    return t.reshape(self, replace_axis(self.shape, axis, *inner))


@lowers(aten.unsqueeze.default, aten.unsqueeze_copy.default)
def unsqueeze(t: Tosa, self: Value, dim: int) -> Value:
    """[*A,*B] -> [*A,1,*B]"""
    new_rank = self.rank + 1
    axis = axis_of(dim, new_rank)
    return t.reshape(self, (*self.shape[:axis], 1, *self.shape[axis:]))


def without_axes(t: Tosa, x: Value, axes: Sequence[int]) -> Value:
    """Return x without ``axes``, which all have size 1."""
    kept = [size for axis, size in enumerate(x.shape) if axis not in axes]
    return t.reshape(x, kept)


def _squeezed(t: Tosa, x: Value, axes: Sequence[int]) -> Value:
    """Return x without those of ``axes`` that have size 1.

    Raises Unsupported if one of these sizes is known at run time only.
    """
    kept = []
    for axis, size in enumerate(x.shape):
        if axis not in axes:
            kept.append(size)
            continue
        why = f"whether an axis of the size {size} is dropped is known at run time only"
        hint = "name the axes that are 1 at every size: x.squeeze(dim)"
        t.refuse_unless(not is_dynamic(size), by_size(why, hint))
        if size != 1:
            kept.append(size)
    return t.reshape(x, kept)


@lowers(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
@lowers(aten.squeeze_copy.default, aten.squeeze_copy.dim, aten.squeeze_copy.dims)
def squeeze(t: Tosa, self: Value, dim: Sequence[int] | int | None = None) -> Value:
    """[*S] -> [*S'] without those axes of ``dim`` that have size 1; None is every axis"""
    if dim is None:
        return _squeezed(t, self, range(self.rank))
    dims = [dim] if isinstance(dim, int) else dim
    axes = [axis_of(d, self.rank) for d in dims]
    return _squeezed(t, self, axes)


# ---- another order of the axes


@lowers(aten.permute.default, aten.permute_copy.default)
def permute(t: Tosa, self: Value, dims: Sequence[int]) -> Value:
    """[*S] -> [*S']"""
    perms = [axis_of(d, self.rank) for d in dims]
    return t.transpose(self, perms)


@lowers(aten.transpose.int, aten.transpose_copy.int)
def transpose(t: Tosa, self: Value, dim0: int, dim1: int) -> Value:
    """[..,A,..,B,..] -> [..,B,..,A,..]"""
    return _swapped(t, self, dim0, dim1)


@lowers(aten.swapaxes.default)
def swapaxes(t: Tosa, self: Value, axis0: int, axis1: int) -> Value:
    """[..,A,..,B,..] -> [..,B,..,A,..]"""
    return _swapped(t, self, axis0, axis1)


@lowers(aten.swapdims.default)
def swapdims(t: Tosa, self: Value, dim0: int, dim1: int) -> Value:
    """[..,A,..,B,..] -> [..,B,..,A,..]"""
    return _swapped(t, self, dim0, dim1)


@lowers(aten.t.default, aten.t_copy.default, aten.numpy_T.default)
def t_(t: Tosa, self: Value) -> Value:
    """[A,B] -> [B,A]; numpy_T reverses any number of axes"""
    reversed_axes = range(self.rank)[::-1]
    return t.transpose(self, reversed_axes)


@lowers(aten.mT.default, aten.mH.default, aten.matrix_H.default, aten.adjoint.default)
def mT(t: Tosa, self: Value) -> Value:
    """[*S,A,B] -> [*S,B,A]; mH and adjoint too, since real numbers are their own
    conjugates
    """
    return _swapped(t, self, -2, -1)


def _swapped(t: Tosa, x: Value, first: int, second: int) -> Value:
    """Return x with the axes ``first`` and ``second`` exchanged; x [] as it is."""
    perms = list(range(x.rank))
    if perms:
        a = axis_of(first, x.rank)
        b = axis_of(second, x.rank)
        perms[a], perms[b] = perms[b], perms[a]
    return t.transpose(x, perms)


@lowers(
    aten.movedim.int, aten.moveaxis.int, aten.movedim.intlist, aten.moveaxis.intlist
)
def movedim(
    t: Tosa, self: Value, source: Sequence[int] | int, destination: Sequence[int] | int
) -> Value:
    """[*S] -> [*S'], the axes ``source`` moved to the positions ``destination``; the
    others keep their order
    """
    sources = [source] if isinstance(source, int) else source
    destinations = [destination] if isinstance(destination, int) else destination
    # position in the result -> axis of ``self``, for the axes that are moved
    axis_at = {}
    for from_dim, to_dim in zip(sources, destinations, strict=True):
        axis_at[axis_of(to_dim, self.rank)] = axis_of(from_dim, self.rank)
    others = [axis for axis in range(self.rank) if axis not in axis_at.values()]
    perms = []
    for position in range(self.rank):
        if position in axis_at:
            perms.append(axis_at[position])
        else:
            perms.append(others.pop(0))
    return t.transpose(self, perms)


# ---- joining


@lowers(
    aten.cat.default, aten.concat.default, aten.concatenate.default, skips_empty=True
)
def cat(t: Tosa, tensors: Sequence[Value], dim: int) -> Value:
    """[*A,N,*B], [*A,M,*B], ... -> [*A,N+M+..,*B]; tensors without elements are left
    out
    """
    values = _one_type(t, tensors)
    return concatenated(t, values, axis_of(dim, values[0].rank))


@lowers(aten.stack.default)
def stack(t: Tosa, tensors: Sequence[Value], dim: int) -> Value:
    """k tensors [*A,*B] -> [*A,k,*B]"""
    values = _one_type(t, tensors)
    axis = axis_of(dim, values[0].rank + 1)
    rows = [unsqueeze(t, value, axis) for value in values]
    return concatenated(t, rows, axis)


def _one_type(t: Tosa, values: Sequence[Value]) -> list[Value]:
    """Convert all ``values`` to the common type to which torch promotes them."""
    dtype = common_type(values)
    return [converted(t, value, dtype) for value in values]


# ---- cutting


def slice_axis(t: Tosa, x: Value, axis: int, start: int, length: int) -> Value:
    """x [*A,N,*B] -> [*A,length,*B], the elements from ``start`` on along ``axis``"""
    begin = [0] * x.rank
    size = list(x.shape)
    begin[axis] = start
    size[axis] = length
    return t.slice(x, begin, size)


def every_nth(t: Tosa, x: Value, axis: int, step: int) -> Value:
    """x [*A,N,*B] -> [*A,ceil(N/step),*B]: elements 0, step, .. along ``axis``.

    SLICE has no step. So the axis is padded to a multiple of ``step`` and reshaped to
    rows. The first element of each row is kept: for step 2, abcde -> ab cd e0 -> ace.
    """
    size = x.shape[axis]
    count = -(-size // step)  # rounded up
    before = math.prod(x.shape[:axis])
    after = math.prod(x.shape[axis + 1 :])
    flat = t.reshape(x, (before, size, after))
    missing = count * step - size
    filled = t.pad(flat, (0, 0, 0, missing, 0, 0))
    rows = t.reshape(filled, (before, count, step, after))
    first = slice_axis(t, rows, axis=2, start=0, length=1)
    return t.reshape(first, replace_axis(x.shape, axis, count))


@lowers(aten.slice.Tensor, aten.slice_copy.Tensor)
def slice(
    t: Tosa, self: Value, dim: int, start: int | None, end: int | None, step: int
) -> Value:
    """[*A,N,*B] -> [*A,N',*B]; negative bounds count from the end, and bounds beyond
    the axis stop at its end
    """
    axis = axis_of(dim, self.rank)
    first, stop = slice_bounds(start, end, self.shape[axis])
    part = slice_axis(t, self, axis, first, stop - first)
    if step == 1:
        return part
    return every_nth(t, part, axis, step)


def slice_bounds(start: int | None, end: int | None, size: int) -> tuple[int, int]:
    """Return start and end of Python's ``[start:end]`` on an axis of ``size`` elements.

    0 <= start <= end <= size. For size 5, [-2:9] is (3, 5). A bound that is only known
    to exceed the axis at run time is not clamped: torch recorded the sizes in the same
    way.
    """
    first = 0 if start is None else _clamped_bound(start, size)
    stop = size if end is None else _clamped_bound(end, size)
    return first, max(first, stop)


def _clamped_bound(position: int, size: int) -> int:
    """Return one bound of a slice, clamped to 0 .. size.

    A negative ``position`` counts from the end.
    """
    if position < 0:
        position += size
    position = max(position, 0)
    # False for sizes that only run time shows
    if exceeds(position, size):
        return size
    return position


@lowers(aten.narrow.default)
def narrow(t: Tosa, self: Value, dim: int, start: int, length: int) -> Value:
    """[*A,N,*B] -> [*A,length,*B]"""
    axis = axis_of(dim, self.rank)
    if start < 0:
        start += self.shape[axis]
    return slice_axis(t, self, axis, start, length)


@lowers(aten.select.int, aten.select_copy.int)
def select(t: Tosa, self: Value, dim: int, index: int) -> Value:
    """[*A,N,*B] -> [*A,*B]"""
    axis = axis_of(dim, self.rank)
    position = index % self.shape[axis]
    row = slice_axis(t, self, axis, position, 1)
    return t.reshape(row, replace_axis(self.shape, axis))


def _cut(t: Tosa, x: Value, dim: int, sizes: Sequence[int]) -> tuple[Value, ...]:
    """Cut x along ``dim`` into consecutive parts of these ``sizes``."""
    axis = axis_of(dim, x.rank)
    start = 0
    parts = []
    for size in sizes:
        parts.append(slice_axis(t, x, axis, start, size))
        start += size
    return tuple(parts)


def _equal_sizes(size: int, step: int) -> list[int]:
    """Return sizes of the pieces when ``size`` is cut into pieces of ``step``.

    The last one may be smaller: 7 cut into pieces of 3 is [3, 3, 1]. A dynamic ``step``
    must divide ``size``: 4*s0 cut into pieces of s0 is [s0, s0, s0, s0].
    """
    if is_dynamic(step) and not is_dynamic(size // step):
        return [step] * (size // step)
    return [min(step, size - start) for start in range(0, size, step)]


@lowers(aten.split.Tensor, aten.split_copy.Tensor, aten.split.sizes)
def split(
    t: Tosa, self: Value, split_size: int | Sequence[int], dim: int
) -> tuple[Value, ...]:
    """[*A,N,*B] -> [*A,split_size,*B], ..; the last one may be smaller; split_size may
    be a list with one size for each result
    """
    if isinstance(split_size, Sequence):
        return _cut(t, self, dim, split_size)
    size = self.shape[axis_of(dim, self.rank)]
    return _cut(t, self, dim, _equal_sizes(size, split_size))


@lowers(aten.split_with_sizes.default, aten.split_with_sizes_copy.default)
def split_with_sizes(
    t: Tosa, self: Value, split_sizes: Sequence[int], dim: int
) -> tuple[Value, ...]:
    """[*A,N,*B] -> [*A,n,*B], ..; n of split_sizes"""
    return _cut(t, self, dim, split_sizes)


@lowers(aten.chunk.default)
def chunk(t: Tosa, self: Value, chunks: int, dim: int) -> tuple[Value, ...]:
    """[*A,N,*B] -> [*A,ceil(N/chunks),*B], ..; at most ``chunks`` pieces, the last of
    which may be smaller
    """
    size = self.shape[axis_of(dim, self.rank)]
    chunk_size = -(-size // chunks)  # rounded up
    return _cut(t, self, dim, _equal_sizes(size, chunk_size))


@lowers(aten.unbind.int, aten.unbind_copy.int)
def unbind(t: Tosa, self: Value, dim: int) -> tuple[Value, ...]:
    """[*A,N,*B] -> [*A,*B], ..; N of them"""
    count = self.shape[axis_of(dim, self.rank)]
    return tuple([select(t, self, dim, index) for index in range(count)])


# ---- repeating


def expanded(t: Tosa, x: Value, shape: Shape) -> Value:
    """x [*S] -> ``shape``, broadcast along axes of size 1 and along new leading axes"""
    x = t.ranked(x, len(shape))
    multiples = [size // present for size, present in zip(shape, x.shape, strict=True)]
    return t.tile(x, multiples)


@lowers(aten.expand.default, aten.expand_copy.default, aten.broadcast_to.default)
def expand(t: Tosa, self: Value, size: Sequence[int]) -> Value:
    """[*S] -> [*size]; -1 keeps a size"""
    x = t.ranked(self, len(size))
    shape = []
    for requested, present in zip(size, x.shape, strict=True):
        shape.append(present if requested == -1 else requested)
    return expanded(t, x, tuple(shape))


@lowers(aten.expand_as.default)
def expand_as(t: Tosa, self: Value, other: Type) -> Value:
    """[*S] -> [*S'], the shape of ``other``"""
    return expanded(t, self, other.shape)


@lowers(aten.repeat.default)
def repeat(t: Tosa, self: Value, repeats: Sequence[int]) -> Value:
    """[*S] -> [*S']; the whole tensor repeated along each axis"""
    return t.tile(t.ranked(self, len(repeats)), repeats)


@lowers(aten.tile.default)
def tile(t: Tosa, self: Value, dims: Sequence[int]) -> Value:
    """[*S] -> [*S']; the whole tensor repeated along each axis; missing leading numbers
    count as 1
    """
    rank = max(len(dims), self.rank)
    multiples = [1] * (rank - len(dims)) + list(dims)
    return t.tile(t.ranked(self, rank), multiples)
