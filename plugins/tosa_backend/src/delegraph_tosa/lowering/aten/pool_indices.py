"""Max pooling that also returns positions, adaptive max pooling, and max unpooling.

The elements of all windows are gathered, ARGMAX finds the largest of each, and a
constant table has its position in the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from delegraph.errors import Unsupported

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
from .pool import Numbers, adaptive_bounds, by_parts, max_pooled, windows_of
from .scatter import combined
from .shape import slice_axis

aten = torch.ops.aten


def _taps(size: int, window: Window) -> list[list[int]]:
    """For each window along one axis, the positions of its elements.

    Those in the padding are left out.
    """
    starts = [k * window.stride - window.before for k in range(window.count(size))]
    return [
        [p for p in range(s, s + window.reach, window.dilation) if 0 <= p < size]
        for s in starts
    ]


def _table(sizes: Sequence[int], taps: list[list[list[int]]]) -> Any:
    """numpy [windows, taps]: flat positions of windows in a plane of ``sizes``.

    ``taps`` has the windows' positions for each axis. A window with fewer elements
    repeats its last position.
    """
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    rows = []
    # its positions along each axis, such as ([0, 1], [2, 3])
    for window in product(*taps):
        places = product(*window)  # of its elements: (0, 2), (0, 3), (1, 2), (1, 3)
        rows.append([sum(map(int.__mul__, place, strides)) for place in places])
    longest = max(map(len, rows))
    return np.array([row + row[-1:] * (longest - len(row)) for row in rows])


def _largest_of_windows(
    t: Tosa, x: Value, taps: list[list[list[int]]]
) -> tuple[Value, Value]:
    """x [*N,*S] -> each window's maximum and its flat position in *S, [*N,*S'].

    ``taps`` has the windows' positions for each axis. Of several equal elements, the
    first one is found.
    """
    lead = x.shape[: x.rank - len(taps)]
    sizes = x.shape[x.rank - len(taps) :]
    table = _table(sizes, taps)
    planes = math.prod(lead)
    count, longest = table.shape
    window = picked(t, t.reshape(x, (planes, math.prod(sizes))), 1, table)
    # index of the largest element in the flattened table: start of the window's row,
    # plus ARGMAX
    row_start = t.literal(np.arange(count, dtype=np.int32)[None] * longest, DType.INT32)
    entry = t.reshape(t.add(t.argmax(window, 2), row_start), (1, planes * count))
    positions = t.gather(
        t.literal(table.reshape(1, -1, 1).astype(np.int32), DType.INT32), entry
    )
    result = (*lead, *map(len, taps))
    return t.reshape(t.reduce_max(window, 2), result), converted(
        t, t.reshape(positions, result), DType.INT64
    )


def _with_indices(t: Tosa, x: Value, axes: list[Window]) -> tuple[Value, Value | None]:
    """x [N,C,*S] or [C,*S] -> the largest elements, and their positions.

    Positions are None if the table would be too large, or if the target lacks an
    operator for them.
    """
    sizes = x.shape[x.rank - len(axes) :]
    values = max_pooled(t, x, axes)
    # the elements of the table: windows * kernel
    elements = math.prod(
        [w.count(n) * w.kernel for n, w in zip(sizes, axes, strict=True)]
    )
    if elements > LARGEST:
        return values, None
    try:
        return (
            values,
            _largest_of_windows(
                t, x, [_taps(n, w) for n, w in zip(sizes, axes, strict=True)]
            )[1],
        )
    # most programs use only the values: those are lowered for a target without integers
    # too
    except Unsupported:
        return values, None


def _register_max_pools() -> None:
    """Register max pools with indices, also adaptive, over one to three axes."""
    with_indices = (
        aten.max_pool1d_with_indices.default,
        aten.max_pool2d_with_indices.default,
        aten.max_pool3d_with_indices.default,
    )
    for axes, overload in enumerate(with_indices, 1):

        @lowers(overload)
        def max_pool_with_indices(
            t: Tosa,
            self: Value,
            kernel_size: Numbers,
            stride: Numbers,
            padding: Numbers,
            dilation: Numbers,
            ceil_mode: bool,
            axes: int = axes,
        ) -> tuple[Value, Value | None]:
            """[N,C,*S] -> [N,C,*S'], and flat positions in S; of several NaN that of
            the first (in torch: the last)
            """
            return _with_indices(
                t,
                self,
                windows_of(axes, kernel_size, stride, padding, dilation, ceil_mode),
            )

    adaptive = (
        aten.adaptive_max_pool1d.default,
        aten.adaptive_max_pool2d.default,
        aten.adaptive_max_pool3d.default,
    )
    for axes, overload in enumerate(adaptive, 1):

        @lowers(overload)
        def adaptive_max_pool(
            t: Tosa, self: Value, output_size: Sequence[int], axes: int = axes
        ) -> tuple[Value, Value | None]:
            """[N,C,*S] -> [N,C,*output_size], and flat positions in S"""
            return _adaptive(t, self, numbers(output_size, axes))


def _adaptive(
    t: Tosa, x: Value, output_size: Sequence[int]
) -> tuple[Value, Value | None]:
    """x [*N,*S] -> the maxima [*N,*output_size], and their flat positions in *S.

    Positions are None if S is known at run time only and the target lacks an operator
    for them.
    """
    first = x.rank - len(output_size)
    sizes = x.shape[first:]
    if not any(map(is_dynamic, sizes)):
        # for each axis, the positions in each window: size 5 -> 2 outputs [[0, 1, 2],
        # [2, 3, 4]]
        windows = [
            [list(range(start, end)) for start, end in adaptive_bounds(size, out)]
            for size, out in zip(sizes, output_size, strict=True)
        ]
        return _largest_of_windows(t, x, windows)
    try:
        return _adaptive_at_run_time(t, x, output_size)
    except Unsupported:
        for axis, count in enumerate(output_size, start=first):
            x = by_parts(t, x, axis, count, lambda t, part: t.reduce_max(part, 1))
        return x, None


def _adaptive_at_run_time(
    t: Tosa, x: Value, counts: Sequence[int]
) -> tuple[Value, Value]:
    """As ``_adaptive``, for dynamic sizes S: reduces one axis after the other.

    It begins with the last axis, so that of several equal elements the first one in
    memory is found.
    """
    positions = None
    stride = 1
    for axis, count in reversed(list(enumerate(counts, start=x.rank - len(counts)))):
        size = x.shape[axis]
        x, index = _largest_of_parts(t, x, axis, count)
        # of the windows' largest along this axis, take the positions that were found
        # along the axes after it
        offset = t.mul(index, stride)
        positions = (
            offset
            if positions is None
            else t.add(offset, gather(t, positions, axis, index))
        )
        stride = stride * size
    assert positions is not None
    return x, converted(t, positions, DType.INT64)


def _largest_of_parts(t: Tosa, x: Value, axis: int, count: int) -> tuple[Value, Value]:
    """x [*A,L,*B] -> maxima of ``count`` adaptive windows of ``axis``, and positions.

    Both are [*A,count,*B].
    """
    before = math.prod(x.shape[:axis])
    after = math.prod(x.shape[axis + 1 :])
    image = t.reshape(x, (before, x.shape[axis], after))
    # of each window, [before,1,after]
    values = []
    indices = []
    for start, stop in adaptive_bounds(x.shape[axis], count):
        part = slice_axis(t, image, 1, start, stop - start)
        indices.append(t.add(t.reshape(t.argmax(part, 1), (before, 1, after)), start))
        values.append(t.reduce_max(part, 1))
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return t.reshape(concatenated(t, values, 1), shape), t.reshape(
        concatenated(t, indices, 1), shape
    )


def _unpooled(t: Tosa, x: Value, indices: Value, sizes: Sequence[int]) -> Value:
    """x [*B,*S], ``indices`` [*B,*S] -> planes [*B,*sizes] with x there, 0 elsewhere.

    Overlapping windows may name a position twice, with the same element: "amax" keeps
    it, where a sum would double it.
    """
    lead = x.shape[: -len(sizes)]
    rows = math.prod(lead)
    places = math.prod(sizes)
    flat = [t.reshape(v, (rows, math.prod(x.shape) // rows)) for v in (indices, x)]
    empty = t.tile(t.constant(0, x.dtype, (1, 1)), (rows, places))
    return t.reshape(
        combined(t, empty, 1, flat[0], flat[1], "amax", include_self=False),
        (*lead, *sizes),
    )


_register_max_pools()


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
    """self [N,C,*S'], flat indices in S -> [N,C,*S], or without N"""
    return _unpooled(t, self, indices, output_size)
