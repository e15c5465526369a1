"""Max pooling that also returns positions, adaptive max pooling, and max unpooling.

The elements of all windows are gathered, and ARGMAX finds the largest of each window.
Its position in the tensor is read from a constant table. Positions are flat indices
into the pooled axes S, as in torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from delegraph.errors import Unsupported
from torch._ops import OpOverload

from ...ir.dynamic_sizes import is_dynamic
from ...ir.graph import Value
from ...ir.types import DType
from ..builder import Tosa
from ..geometry.layout import numbers
from ..geometry.positions import LARGEST, picked
from ..geometry.window import Window
from ..promotion import converted
from ..ranges.index_bounds import places
from ..registry import lowers
from .conv import concatenated
from .index import gather
from .pool import Numbers, adaptive_bounds, by_adaptive_windows, max_pooled, windows_of
from .scatter import combined
from .shape import replace_axis, slice_axis

aten = torch.ops.aten
AxisWindows = list[list[int]]
"""For each window along one axis, the positions of its elements on this axis."""


def _axis_windows(size: int, window: Window) -> AxisWindows:
    """Return the positions of the elements of each window along one axis.

    Positions in the padding are left out: size 4 with kernel 3, stride 2 and padding 1
    gives [[0, 1], [1, 2, 3]].
    """
    windows = []
    for number in range(window.count(size)):
        start = number * window.stride - window.before
        positions = range(start, start + window.reach, window.dilation)
        windows.append([p for p in positions if 0 <= p < size])
    return windows


def _table(sizes: Sequence[int], windows: list[AxisWindows]) -> Any:
    """Return the flat positions of the elements of each window in axes of ``sizes``.

    ``windows`` are those of each axis. The result is numpy [windows, elements]. A window
    with fewer elements repeats its last position.
    """
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    rows = []
    # ``window`` has positions along each axis, such as ([0, 1], [2, 3])
    for window in product(*windows):
        row = []
        for place in product(*window):  # (0, 2), (0, 3), (1, 2), (1, 3)
            offsets = [p * stride for p, stride in zip(place, strides, strict=True)]
            row.append(sum(offsets))
        rows.append(row)
    longest = max([len(row) for row in rows])
    for row in rows:
        missing = longest - len(row)
        row += [row[-1]] * missing
    return np.array(rows)


class Maxima(NamedTuple):
    """The largest elements of windows, and their flat int64 positions.

    Positions are None if they are not lowered.
    """

    values: Value
    positions: Value | None


def _largest_of_windows(t: Tosa, x: Value, windows: list[AxisWindows]) -> Maxima:
    """x [*N,*S] -> each window's maximum and its flat position in *S, [*N,*S'].

    ``windows`` are those of each axis. Of several equal elements, the first one is
    found.
    """
    first_axis = x.rank - len(windows)
    lead = x.shape[:first_axis]
    sizes = x.shape[first_axis:]
    table = _table(sizes, windows)
    planes = math.prod(lead)
    count, longest = table.shape
    flat = t.reshape(x, (planes, math.prod(sizes)))
    elements = picked(t, flat, 1, table)  # [planes,count,longest]
    # index of the largest element in the flattened table: start of the window's row,
    # plus ARGMAX
    row_numbers = np.arange(count, dtype=np.int32)[None]
    row_start = t.literal(row_numbers * longest, DType.INT32)
    entry = t.add(t.argmax(elements, 2), row_start)
    entry = t.reshape(entry, (1, planes * count))
    entries = table.reshape(1, -1, 1).astype(np.int32)
    positions = t.gather(t.literal(entries, DType.INT32), entry)
    shape = (*lead, *[len(axis_windows) for axis_windows in windows])
    values = t.reshape(t.reduce_max(elements, 2), shape)
    positions = t.reshape(positions, shape)
    return Maxima(values, converted(t, positions, DType.INT64))


def _with_indices(t: Tosa, x: Value, axes: list[Window]) -> Maxima:
    """x [N,C,*S] or [C,*S] -> the largest elements, and their positions.

    Positions are None if the table would be too large, or if the target lacks an
    operator for them.
    """
    sizes = x.shape[x.rank - len(axes) :]
    values = max_pooled(t, x, axes)
    # the elements of the table: windows * kernel
    elements = 1
    for size, window in zip(sizes, axes, strict=True):
        elements *= window.count(size) * window.kernel
    if elements > LARGEST:
        return Maxima(values, None)
    windows = []
    for size, window in zip(sizes, axes, strict=True):
        windows.append(_axis_windows(size, window))
    try:
        positions = _largest_of_windows(t, x, windows).positions
    # most programs use only the values: those are lowered for a target without integers
    # too
    except Unsupported:
        return Maxima(values, None)
    return Maxima(values, positions)


def _register_max_pools(
    axes: int, with_indices: OpOverload, adaptive: OpOverload
) -> None:
    """Register the rules of both max pools with indices over ``axes`` axes."""

    @lowers(with_indices)
    def max_pool_with_indices(
        t: Tosa,
        self: Value,
        kernel_size: Numbers,
        stride: Numbers,
        padding: Numbers,
        dilation: Numbers,
        ceil_mode: bool,
    ) -> Maxima:
        """[N,C,*S] -> [N,C,*S'], and flat positions in S. A window with several NaN
        has the position of the first (in torch: the last).
        """
        windows = windows_of(axes, kernel_size, stride, padding, dilation, ceil_mode)
        return _with_indices(t, self, windows)

    @lowers(adaptive)
    def adaptive_max_pool(t: Tosa, self: Value, output_size: Sequence[int]) -> Maxima:
        """[N,C,*S] -> [N,C,*output_size], and flat positions in S"""
        return _adaptive(t, self, numbers(output_size, axes))


def _adaptive(t: Tosa, x: Value, output_size: Sequence[int]) -> Maxima:
    """x [*N,*S] -> the maxima [*N,*output_size], and their flat positions in *S.

    Positions are None if S is known at run time only and the target lacks an operator
    for them.
    """
    first_axis = x.rank - len(output_size)
    sizes = x.shape[first_axis:]
    if not any(is_dynamic(size) for size in sizes):
        # size 5 and 2 outputs: [[0, 1, 2], [2, 3, 4]]
        windows = []
        for size, count in zip(sizes, output_size, strict=True):
            bounds = adaptive_bounds(size, count)
            windows.append([list(range(start, stop)) for start, stop in bounds])
        return _largest_of_windows(t, x, windows)
    try:
        return _adaptive_at_run_time(t, x, output_size)
    except Unsupported:
        for axis, count in enumerate(output_size, start=first_axis):
            x = by_adaptive_windows(t, x, axis, count, _maximum)
        return Maxima(x, None)


def _maximum(t: Tosa, x: Value) -> Value:
    """x [N,L,W,1] -> [N,1,W,1], the maximum over L"""
    return t.reduce_max(x, 1)


def _adaptive_at_run_time(t: Tosa, x: Value, counts: Sequence[int]) -> Maxima:
    """Return ``_adaptive`` for dynamic sizes S: reduce one axis after the other.

    It begins with the last axis, so that of several equal elements the first one in
    memory is found.
    """
    positions: Value | None = None
    stride = 1
    first_axis = x.rank - len(counts)
    for axis in range(x.rank - 1, first_axis - 1, -1):
        size = x.shape[axis]
        x, index = _largest_of_parts(t, x, axis, counts[axis - first_axis])
        offset = t.mul(index, stride)
        if positions is not None:
            # ``positions`` are those along the axes after this one: keep them for the
            # largest elements
            offset = t.add(offset, gather(t, positions, axis, index))
        positions = offset
        stride = stride * size
    assert positions is not None
    return Maxima(x, converted(t, positions, DType.INT64))


def _largest_of_parts(t: Tosa, x: Value, axis: int, count: int) -> tuple[Value, Value]:
    """x [*A,L,*B] -> maxima of ``count`` adaptive windows of ``axis``, and positions.

    Both are [*A,count,*B].
    """
    size = x.shape[axis]
    before = math.prod(x.shape[:axis])
    after = math.prod(x.shape[axis + 1 :])
    image = t.reshape(x, (before, size, after))
    # one [before,1,after] for each window
    values = []
    indices = []
    for start, stop in adaptive_bounds(size, count):
        part = slice_axis(t, image, 1, start, stop - start)
        index = t.reshape(t.argmax(part, 1), (before, 1, after))
        indices.append(t.add(index, start))
        values.append(t.reduce_max(part, 1))
    shape = replace_axis(x.shape, axis, count)
    maxima = t.reshape(concatenated(t, values, 1), shape)
    positions = t.reshape(concatenated(t, indices, 1), shape)
    return maxima, positions


_register_max_pools(
    1, aten.max_pool1d_with_indices.default, aten.adaptive_max_pool1d.default
)
_register_max_pools(
    2, aten.max_pool2d_with_indices.default, aten.adaptive_max_pool2d.default
)
_register_max_pools(
    3, aten.max_pool3d_with_indices.default, aten.adaptive_max_pool3d.default
)


@lowers(
    aten.max_unpool2d.default,
    aten.max_unpool3d.default,
    indexes={"indices": places("output_size")},
)
def max_unpool(
    t: Tosa,
    self: Value,
    indices: Value,
    output_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
) -> Value:
    """self [N,C,*S'], flat indices in S -> [N,C,*S], or without N; output_size is S

    The indices have the whole information: stride and padding have no effect.
    """
    # overlapping windows may name a position twice, with the same element: "amax" keeps
    # it, where a sum would double it
    lead = self.shape[: -len(output_size)]
    rows = math.prod(lead)
    columns = math.prod(self.shape) // rows
    places = t.reshape(indices, (rows, columns))
    values = t.reshape(self, (rows, columns))
    zero = t.constant(0, self.dtype, (1, 1))
    empty = t.tile(zero, (rows, math.prod(output_size)))
    y = combined(t, empty, 1, places, values, "amax", include_self=False)
    return t.reshape(y, (*lead, *output_size))
