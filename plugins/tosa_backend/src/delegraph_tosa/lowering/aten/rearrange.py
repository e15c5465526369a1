"""Operators that select, reorder or replace elements: flip, diagonal, unfold, ...

Rules use SLICE, CONCAT and REVERSE where a few of them are enough, else one GATHER with
constant positions (``geometry.positions``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ...ir.dynamic_sizes import is_dynamic, largest, smallest
from ...ir.graph import Value
from ...ir.types import DType, Type
from ..builder import Tosa
from ..geometry.layout import axis_of, flattened, pair
from ..geometry.positions import numbered, picked, rearranged
from ..geometry.window import framed, spread
from ..promotion import converted
from ..registry import lowers
from .conv import concatenated
from .shape import every_nth, expanded, replace_axis, slice_axis, slice_bounds

aten = torch.ops.aten
Pairs = Sequence[int]

# ---- reversed and rotated


def _reversed(t: Tosa, x: Value, dims: Sequence[int]) -> Value:
    """Return x reversed along ``dims``."""
    # torch accepts the dims 0 and -1 for a tensor without axes
    if x.rank == 0:
        return x
    for dim in dims:
        x = t.reverse(x, axis_of(dim, x.rank))
    return x


@lowers(aten.flip.default)
def flip(t: Tosa, self: Value, dims: Sequence[int]) -> Value:
    """[*S] -> [*S], reversed along ``dims``"""
    return _reversed(t, self, dims)


@lowers(aten.fliplr.default)
def fliplr(t: Tosa, self: Value) -> Value:
    """[A,B,*S] -> [A,B,*S], reversed along B"""
    return _reversed(t, self, [1])


@lowers(aten.flipud.default)
def flipud(t: Tosa, self: Value) -> Value:
    """[A,*S] -> [A,*S], reversed along A"""
    return _reversed(t, self, [0])


@lowers(aten.rot90.default)
def rot90(t: Tosa, self: Value, k: int, dims: Sequence[int]) -> Value:
    """[..,A,..,B,..] -> [..,A,..,B,..] or [..,B,..,A,..]; turned k times by 90 degrees
    from dims[0] to dims[1]
    """
    first = axis_of(dims[0], self.rank)
    second = axis_of(dims[1], self.rank)
    quarters = k % 4
    if quarters == 0:
        return self
    if quarters == 2:
        return _reversed(t, self, [first, second])
    perms = list(range(self.rank))
    perms[first] = second
    perms[second] = first
    swapped = t.transpose(self, perms)
    reversed_axis = first if quarters == 1 else second
    return _reversed(t, swapped, [reversed_axis])


@lowers(aten.roll.default)
def roll(t: Tosa, self: Value, shifts: Sequence[int], dims: Sequence[int]) -> Value:
    """[*S] -> [*S]; rotated along ``dims``. If ``dims`` is empty, the flattened tensor
    is rotated
    """
    if not dims:
        flat = flattened(t, self)
        rolled = _rolled(t, flat, shifts[0], axis=0)
        return t.reshape(rolled, self.shape)
    if self.rank == 0:
        return self
    y = self
    for shift, dim in zip(shifts, dims, strict=True):
        y = _rolled(t, y, shift, axis_of(dim, self.rank))
    return y


def _rolled(t: Tosa, x: Value, shift: int, axis: int) -> Value:
    """Return x rotated along ``axis``: element i moves to (i + shift) % size."""
    size = x.shape[axis]
    offset = shift % size
    if offset == 0:
        return x
    first = size - offset
    if is_dynamic(size):
        # one of the two pieces may be empty at run time, and TOSA has no empty tensors:
        # abcd -> abcdabcd -> dabc
        twice = t.concat([x, x], axis)
        return slice_axis(t, twice, axis, first, size)
    end = slice_axis(t, x, axis, first, offset)
    start = slice_axis(t, x, axis, 0, first)
    return t.concat([end, start], axis)


# ---- diagonals


@lowers(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(t: Tosa, self: Value, offset: int, dim1: int, dim2: int) -> Value:
    """[..,N,..,M,..] -> [..,K], elements (k, k + offset) of ``dim1`` and ``dim2``.

    In the flattened axes N and M, these are every (M + 1)-th element.
    """
    first = axis_of(dim1, self.rank)
    second = axis_of(dim2, self.rank)
    rest = [axis for axis in range(self.rank) if axis not in (first, second)]
    x = t.transpose(self, [*rest, first, second])
    *lead, rows, columns = x.shape
    if offset >= 0:
        start = offset
        count = smallest(rows, columns - offset)
    else:
        start = -offset * columns
        count = smallest(rows + offset, columns)
    flat = t.reshape(x, (*lead, rows * columns))
    step = columns + 1
    length = 0
    if count > 0:
        # from the first to the last element of the diagonal
        length = (largest(count, 1) - 1) * step + 1
    axis = len(lead)
    part = slice_axis(t, flat, axis, start, length)
    return every_nth(t, part, axis, step)


@lowers(aten.linalg_diagonal.default)
def linalg_diagonal(t: Tosa, A: Value, offset: int, dim1: int, dim2: int) -> Value:
    """[..,N,..,M,..] -> [..,K]"""
    return diagonal(t, A, offset, dim1, dim2)


# ---- windows that overlap


def windows_along(
    t: Tosa, x: Value, axis: int, kernel: int, step: int, dilation: int = 1
) -> Value:
    """x [*A,N,*B] -> [*A,count,kernel,*B]: windows of ``kernel`` elements.

    A window begins every ``step`` elements; its elements are ``dilation`` apart.
    """
    reach = dilation * (kernel - 1) + 1
    count = (x.shape[axis] - reach) // step + 1
    if step == kernel and dilation == 1:
        # windows that follow one another without overlap are the rows of a reshaped
        # axis
        covered = slice_axis(t, x, axis, 0, count * kernel)
        return t.reshape(covered, replace_axis(x.shape, axis, count, kernel))
    if is_dynamic(count):
        # a GATHER needs constant positions: instead, join for each k the k-th elements
        # of all windows
        span = (count - 1) * step + 1
        shape = replace_axis(x.shape, axis, count, 1)
        columns = []
        for k in range(kernel):
            column = slice_axis(t, x, axis, k * dilation, span)
            if step != 1:
                column = every_nth(t, column, axis, step)
            columns.append(t.reshape(column, shape))
        return concatenated(t, columns, axis + 1)
    starts = np.arange(count) * step
    places = starts[:, None] + np.arange(kernel) * dilation
    return picked(t, x, axis, places)


@lowers(aten.unfold.default, aten.unfold_copy.default)
def unfold(t: Tosa, self: Value, dimension: int, size: int, step: int) -> Value:
    """[*A,N,*B] -> [*A,count,*B,size]"""
    if self.rank == 0:
        return t.reshape(self, (1,))
    axis = axis_of(dimension, self.rank)
    # [*A,count,size,*B]; the axis of the window's elements becomes the last one
    x = windows_along(t, self, axis, size, step)
    others = [a for a in range(x.rank) if a != axis + 1]
    return t.transpose(x, [*others, axis + 1])


@lowers(aten.im2col.default)
def im2col(
    t: Tosa,
    self: Value,
    kernel_size: Pairs,
    dilation: Pairs,
    padding: Pairs,
    stride: Pairs,
) -> Value:
    """[N,C,H,W] or [C,H,W] -> [N,C*KH*KW,L] or [C*KH*KW,L]: a window per column"""
    kernel_height, kernel_width = pair(kernel_size)
    dilation_y, dilation_x = pair(dilation)
    padding_y, padding_x = pair(padding)
    stride_y, stride_x = pair(stride)
    frame = [(0, 0), (0, 0), (padding_y, padding_y), (padding_x, padding_x)]
    x = framed(t, t.ranked(self, 4), frame)
    # [N,C,H,W] -> [N,C,rows,KH,W] -> [N,C,rows,KH,columns,KW], where rows * columns is
    # L
    x = windows_along(t, x, 2, kernel_height, stride_y, dilation_y)
    x = windows_along(t, x, 4, kernel_width, stride_x, dilation_x)
    n, c, rows, _, columns, _ = x.shape
    windows_last = t.transpose(x, (0, 1, 3, 5, 2, 4))
    y = t.reshape(windows_last, (n, c * kernel_height * kernel_width, rows * columns))
    return y if self.rank == 4 else t.reshape(y, y.shape[1:])


@lowers(aten.col2im.default)
def col2im(
    t: Tosa,
    self: Value,
    output_size: Pairs,
    kernel_size: Pairs,
    dilation: Pairs,
    padding: Pairs,
    stride: Pairs,
) -> Value:
    """[N,C*KH*KW,L] or [C*KH*KW,L] -> [N,C,H,W] or [C,H,W]; puts the
    windows of im2col back, and adds their elements where they overlap
    """
    kernel_height, kernel_width = pair(kernel_size)
    dilation_y, dilation_x = pair(dilation)
    padding_y, padding_x = pair(padding)
    stride_y, stride_x = pair(stride)
    output_height, output_width = pair(output_size)
    height = output_height + 2 * padding_y
    width = output_width + 2 * padding_x
    x = t.ranked(self, 3)
    n = x.shape[0]
    c = x.shape[1] // (kernel_height * kernel_width)
    # the number of windows along the height and along the width; their product is L
    rows = (height - dilation_y * (kernel_height - 1) - 1) // stride_y + 1
    columns = (width - dilation_x * (kernel_width - 1) - 1) // stride_x + 1
    # sum the overlaps along the width first, then along the height; the padding is cut
    # off at the end
    by_column = t.reshape(x, (n * c * kernel_height, kernel_width, rows, columns))
    lines = _overlapping_sum(t, by_column, 3, stride_x, dilation_x, width)
    by_row = t.reshape(lines, (n * c, kernel_height, rows, width))
    image = _overlapping_sum(t, by_row, 2, stride_y, dilation_y, height)
    padded = t.reshape(image, (n, c, height, width))
    begin = (0, 0, padding_y, padding_x)
    y = t.slice(padded, begin, (n, c, output_height, output_width))
    return y if self.rank == 3 else t.reshape(y, y.shape[1:])


def _overlapping_sum(
    t: Tosa, x: Value, axis: int, stride: int, dilation: int, size: int
) -> Value:
    """x [N,K,A,B] -> [N,A',B']: windows added into a result of ``size`` along ``axis``.

    Element k of window w is added at position w * stride + k * dilation. ``axis`` (2 or
    3) counts the windows in x.
    """
    total: Value | None = None
    for tap in range(x.shape[1]):
        elements = slice_axis(t, x, 1, tap, 1)
        strided = spread(t, elements, axis, stride)
        before = tap * dilation
        frame = [(0, 0)] * 4
        frame[axis] = (before, size - before - strided.shape[axis])
        placed = framed(t, strided, frame)
        total = placed if total is None else t.add(total, placed)
    assert total is not None
    return t.reshape(total, (x.shape[0], *total.shape[2:]))


@lowers(aten.pixel_unshuffle.default)
def pixel_unshuffle(t: Tosa, self: Value, downscale_factor: int) -> Value:
    """[*A,C,H,W] -> [*A,C*r*r,H/r,W/r]; the pixels of each square of r * r become
    channels
    """
    *lead, channels, height, width = self.shape
    r = downscale_factor
    rows = height // r
    columns = width // r
    squares = t.reshape(self, (math.prod(lead) * channels, rows, r, columns, r))
    by_pixel = t.transpose(squares, (0, 2, 4, 1, 3))
    return t.reshape(by_pixel, (*lead, channels * r * r, rows, columns))


# ---- views by positions in memory


def _memory_positions(
    t: Tosa,
    x: Value,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None,
) -> Any:
    """Return the positions in memory of the elements of a view of x, numpy [*size].

    A ``storage_offset`` of None is 0. Raises Unsupported if a position is beyond the
    last element of x.
    """
    positions = np.array(storage_offset or 0)
    # each axis of the view adds its steps along a new last axis
    for count, step in zip(size, stride, strict=True):
        positions = positions[..., None] + np.arange(count) * step
    inside = positions.size == 0 or int(positions.max()) < math.prod(x.shape)
    t.refuse_unless(
        inside, "it reads memory beyond its input, of which TOSA knows nothing"
    )
    return positions


@lowers(aten.as_strided.default, aten.as_strided_copy.default, by_memory=True)
def as_strided(
    t: Tosa,
    self: Value,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None,
) -> Value:
    """[*S] -> [*size]; element i, j, .. is at position storage_offset + i * stride[0] +
    j * stride[1] + .. of self
    """
    positions = _memory_positions(t, self, size, stride, storage_offset)
    return rearranged(t, self, positions)


@lowers(aten.as_strided_scatter.default, by_memory=True)
def as_strided_scatter(
    t: Tosa,
    self: Value,
    src: Value,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None,
) -> Value:
    """self [*S], src [*size] -> [*S] with ``src`` where ``as_strided`` reads"""
    positions = _memory_positions(t, self, size, stride, storage_offset)
    return _replaced(t, self, src, positions)


@lowers(aten.resize.default, by_memory=True)
def resize(t: Tosa, self: Value, size: Sequence[int], memory_format: Any) -> Value:
    """[*S] -> [*size], the first elements in memory"""
    count = math.prod(size)
    present = math.prod(self.shape)
    t.refuse_unless(
        memory_format in (None, torch.contiguous_format),
        "resizing to another memory format is not lowered",
    )
    t.refuse_unless(
        count <= present,
        f"resizing {list(self.shape)} to {list(size)} leaves elements undefined",
    )
    flat = t.reshape(self, (present,))
    return t.reshape(slice_axis(t, flat, 0, 0, count), size)


# ---- slices that are replaced


def _replaced(t: Tosa, x: Value, src: Value, positions: Any) -> Value:
    """Return x [*S] with ``src`` at ``positions``, constant flat indices (numpy)."""
    # one GATHER reads x and ``src`` joined: elements of ``src`` come after all of x
    sources = numbered(x.shape).ravel()
    sources[positions.ravel()] = sources.size + np.arange(positions.size)
    src = converted(t, src, x.dtype)
    flat_x = flattened(t, x)
    flat_src = flattened(t, src)
    joined = t.concat([flat_x, flat_src], 0)
    return t.reshape(picked(t, joined, 0, sources), x.shape)


@lowers(aten.slice_scatter.default)
def slice_scatter(
    t: Tosa,
    self: Value,
    src: Value,
    dim: int,
    start: int | None,
    end: int | None,
    step: int,
) -> Value:
    """self [*A,N,*B], src [*A,M,*B] -> [*A,N,*B] with self[start:end:step] = src"""
    axis = axis_of(dim, self.rank)
    size = self.shape[axis]
    first, stop = slice_bounds(start, end, size)
    if step > 1:
        positions = np.moveaxis(numbered(self.shape), axis, 0)
        selected = positions[first:stop:step]
        return _replaced(t, self, src, np.moveaxis(selected, 0, axis))
    src = converted(t, src, self.dtype)
    if is_dynamic(size):
        return _put_by_select(t, self, src, axis, first, size - stop)
    parts = [src]
    # TOSA has no empty tensors
    if first > 0:
        parts.insert(0, slice_axis(t, self, axis, 0, first))
    if stop < size:
        parts.append(slice_axis(t, self, axis, stop, size - stop))
    return concatenated(t, parts, axis)


def _put_by_select(
    t: Tosa, x: Value, src: Value, axis: int, before: int, after: int
) -> Value:
    """Return x [*A,N,*B] with src [*A,M,*B] in place of elements, for a dynamic N.

    It replaces the elements from ``before`` to N - ``after`` of ``axis``. Either part
    of x may be empty at run time, so that CONCAT cannot join them.
    """
    padding = [0] * (2 * x.rank)
    padding[2 * axis] = before
    padding[2 * axis + 1] = after
    multiples = [1] * x.rank
    multiples[axis] = src.shape[axis]
    true = t.constant(True, DType.BOOL, (1,) * x.rank)
    false = t.constant(False, DType.BOOL)
    is_replaced = t.pad(t.tile(true, multiples), padding, false)
    return t.select(is_replaced, t.pad(src, padding), x)


@lowers(aten.select_scatter.default)
def select_scatter(t: Tosa, self: Value, src: Value, dim: int, index: int) -> Value:
    """self [*A,N,*B], src [*A,*B] -> [*A,N,*B] with ``src`` at ``index``"""
    axis = axis_of(dim, self.rank)
    start = index % self.shape[axis]
    row = t.reshape(src, replace_axis(self.shape, axis, 1))
    return slice_scatter(t, self, row, axis, start, start + 1, step=1)


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(
    t: Tosa, self: Value, src: Value, offset: int, dim1: int, dim2: int
) -> Value:
    """self [..,N,..,M,..], src [..,K] -> [..,N,..,M,..] with ``src`` on the diagonal"""
    first = axis_of(dim1, self.rank)
    second = axis_of(dim2, self.rank)
    positions = np.diagonal(numbered(self.shape), offset, first, second)
    return _replaced(t, self, src, positions)


@lowers(aten.copy.default)
def copy(t: Tosa, self: Type, src: Value) -> Value:
    """self [*S], src [*S'] -> [*S]; ``src``, cast and broadcast to the type and shape
    of self
    """
    return expanded(t, converted(t, src, self.dtype), self.shape)
