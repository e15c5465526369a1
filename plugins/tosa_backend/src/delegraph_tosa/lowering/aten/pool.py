"""Max pools and average pools, also adaptive ones.

TOSA pools images [N,H,W,C]. Volumes are pooled in two steps: over height and width,
then over depth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch._ops import OpOverload

from ...ir.dynamic_sizes import is_dynamic
from ...ir.graph import Value
from ...ir.types import ARRAY_DTYPES, FLOATS, DType
from ..builder import Tosa
from ..geometry.layout import batched, channels_first, channels_last, numbers, unbatched
from ..geometry.window import Pad, Window, exact, framed, windows
from ..promotion import converted
from ..registry import lowers
from .conv import concatenated
from .shape import every_nth, replace_axis, slice_axis

aten = torch.ops.aten
Numbers = int | Sequence[int]
Pool = Callable[[Value, list[Window]], Value]
"""Pools an image [N,H,W,C] by the windows of H and W."""
ONE_ELEMENT = Window(kernel=1, stride=1, before=0, after=0)
"""The windows of an axis that is not pooled."""


def pooled(t: Tosa, x: Value, axes: list[Window], pool: Pool) -> Value:
    """x [N,C,*S] or [C,*S] -> [N,C,*S'] or [C,*S'], by ``pool`` over the last axes."""
    rank = len(axes) + 2
    batch = batched(t, x, rank)
    image = t.transpose(batch, channels_last(rank))
    y = _pooled_channels_last(t, image, axes, pool)
    return unbatched(t, t.transpose(y, channels_first(rank)), x)


def _pooled_channels_last(t: Tosa, x: Value, axes: list[Window], pool: Pool) -> Value:
    """x [N,*S,C] -> [N,*S',C]. A volume takes two pools, the second along its depth."""
    if len(axes) == 2:
        return pool(x, axes)
    n, depth, height, width, c = x.shape
    slices = t.reshape(x, (n * depth, height, width, c))
    y = pool(slices, axes[1:])
    _, height, width, _ = y.shape
    columns = t.reshape(y, (n, depth, height * width, c))
    z = pool(columns, [axes[0], ONE_ELEMENT])
    return t.reshape(z, (n, z.shape[1], height, width, c))


def windows_of(
    count: int,
    kernel: Numbers,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    ceil: bool,
) -> list[Window]:
    """Return the windows of a pool over ``count`` axes, from torch's arguments.

    An empty ``stride`` means the kernel's size, as in torch.
    """
    size = numbers(kernel, count)
    step = numbers(stride, count) if stride else size
    return windows(size, step, numbers(padding, count), numbers(dilation, count), ceil)


class KernelAndStride(NamedTuple):
    """Sizes and steps of windows, one for each axis, as TOSA takes them."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]


def _kernel_and_stride(windows: list[Window]) -> KernelAndStride:
    """Return the sizes and steps of ``windows``."""
    kernel = tuple([window.kernel for window in windows])
    stride = tuple([window.stride for window in windows])
    return KernelAndStride(kernel, stride)


# ---- the largest


def max_pooled(t: Tosa, x: Value, axes: list[Window]) -> Value:
    """x [N,C,*S] or [C,*S] -> [N,C,*S'] or [C,*S'], the maxima; NaN if one is NaN"""
    if len(axes) == 1:
        *lead, length = x.shape
        image = t.reshape(x, (*lead, 1, length))
        y = max_pooled(t, image, [ONE_ELEMENT, *axes])
        return t.reshape(y, (*y.shape[:-2], y.shape[-1]))
    return pooled(t, x, axes, partial(_max_pooled_image, t))


def _max_pooled_image(t: Tosa, image: Value, windows: list[Window]) -> Value:
    """image [N,H,W,C] -> [N,H',W',C]; axis by axis if a window is dilated."""
    if any(window.dilation > 1 for window in windows):
        of_rows, of_columns = windows
        y = _max_pooled_dilated(t, image, 1, of_rows)
        return _max_pooled_dilated(t, y, 2, of_columns)
    image, pad = exact(t, image, windows, fill=-math.inf)
    kernel, stride = _kernel_and_stride(windows)
    return t.max_pool2d(image, kernel, stride, pad)


def _max_pooled_dilated(t: Tosa, x: Value, axis: int, window: Window) -> Value:
    """Return x [N,H,W,C] max-pooled along ``axis`` by a dilated window.

    MAX_POOL2D has no dilation. The axis is reshaped to rows of ``dilation`` elements.
    The elements of a window are then neighbours in a column: for a dilation of 2,
    [0, 1], [2, 3], [4, 5] has the columns 0, 2, 4 and 1, 3, 5.
    """
    n, height, width, c = x.shape
    length = x.shape[axis]
    dilation = window.dilation
    # from the start of the first window to the start of the last one
    span = (window.count(length) - 1) * window.stride
    rows = -(-(span + window.reach) // dilation)  # rounded up
    frame = [(0, 0)] * 4
    frame[axis] = (window.before, rows * dilation - window.before - length)
    padded = framed(t, x, frame, _lowest(x.dtype))
    if axis == 1:
        in_rows = t.reshape(padded, (n, rows, dilation * width, c))
    else:
        in_rows = t.reshape(padded, (n * height, rows, dilation, c))
    y = t.max_pool2d(
        in_rows, kernel=(window.kernel, 1), stride=(1, 1), pad=(0, 0, 0, 0)
    )
    in_line = t.reshape(y, replace_axis(x.shape, axis, y.shape[1] * dilation))
    # there is a window at each position: keep those at multiples of torch's stride
    starts = slice_axis(t, in_line, axis, 0, span + 1)
    if window.stride == 1:
        return starts
    return every_nth(t, starts, axis, window.stride)


def _lowest(dtype: DType) -> float:
    """Return the lowest number of a type, the padding that changes no maximum."""
    if dtype in FLOATS:
        return -math.inf
    return float(np.iinfo(ARRAY_DTYPES[dtype]).min)


def _register_max_pool(overload: OpOverload, axes: int) -> None:
    """Register the rule of a max pool over ``axes`` axes."""

    @lowers(overload)
    def max_pool(
        t: Tosa,
        self: Value,
        kernel_size: Numbers,
        stride: Numbers,
        padding: Numbers,
        dilation: Numbers,
        ceil_mode: bool,
    ) -> Value:
        """[N,C,*S] -> [N,C,*S']; NaN if one element is NaN"""
        windows = windows_of(axes, kernel_size, stride, padding, dilation, ceil_mode)
        return max_pooled(t, self, windows)


_register_max_pool(aten.max_pool1d.default, axes=1)
_register_max_pool(aten.max_pool2d.default, axes=2)
_register_max_pool(aten.max_pool3d.default, axes=3)


# ---- averages


def avg_pooled(
    t: Tosa, x: Value, axes: list[Window], counts_padding: bool, divisor: int | None
) -> Value:
    """x [N,C,*S] or [C,*S] -> [N,C,*S'] or [C,*S'], the average of each window.

    AVG_POOL2D does not count its own padding. If torch does (``counts_padding``), PAD
    adds zeros to the input instead. With a ``divisor``, each average is multiplied by
    the window's size / ``divisor``, so all padding has to count.
    """

    def pool(image: Value, windows: list[Window]) -> Value:
        """Average ``image`` [N,H,W,C] over the windows of H and W."""
        image, pad = exact(t, image, windows)
        if divisor is not None:
            # all padding counts: zeros replace it
            image = _zero_padded(t, image, pad)
            pad = (0, 0, 0, 0)
        elif counts_padding:
            # the user's padding counts: zeros replace this part
            ceil_pad = _ceil_padding(pad, windows)
            user_pad = [side - ceil for side, ceil in zip(pad, ceil_pad, strict=True)]
            image = _zero_padded(t, image, user_pad)
            pad = ceil_pad
        kernel, stride = _kernel_and_stride(windows)
        return t.avg_pool2d(image, kernel, stride, pad)

    y = pooled(t, x, axes, pool)
    if divisor is None:
        return y
    window_size = math.prod([window.kernel for window in axes])
    return t.mul(y, window_size / divisor)


def _ceil_padding(pad: Pad, windows: list[Window]) -> Pad:
    """Return the part of ``pad`` that ceil_mode adds: torch never counts it.

    All other padding is the user's.
    """
    result: list[int] = []
    for axis, window in enumerate(windows):
        after = pad[2 * axis + 1]
        result += [0, max(after - window.after, 0)]
    return tuple(result)


def _zero_padded(t: Tosa, x: Value, pad: Sequence[int]) -> Value:
    """Return x [N,H,W,C] with zeros around; pad is (top, bottom, left, right)."""
    return t.pad(x, (0, 0, *pad, 0, 0))


def _register_average_pool(overload: OpOverload, axes: int) -> None:
    """Register the rule of an average pool over ``axes`` axes."""

    @lowers(overload)
    def avg_pool(
        t: Tosa,
        self: Value,
        kernel_size: Numbers,
        stride: Numbers,
        padding: Numbers,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Value:
        """[N,C,*S] -> [N,C,*S']"""
        windows = windows_of(axes, kernel_size, stride, padding, 1, ceil_mode)
        return avg_pooled(t, self, windows, count_include_pad, divisor_override)


_register_average_pool(aten.avg_pool2d.default, axes=2)
_register_average_pool(aten.avg_pool3d.default, axes=3)


def adaptive_averaged(t: Tosa, x: Value, output_size: Sequence[int]) -> Value:
    """x [N,C,*S] or [C,*S] -> [N,C,*output_size] or [C,*output_size].

    If each size is a multiple of its output size, windows are equal, and this is one
    pool. Otherwise windows differ in length, and each is averaged by itself.
    """
    first_axis = x.rank - len(output_size)
    windows = []
    for size, count in zip(x.shape[first_axis:], output_size, strict=True):
        window = _equal_windows(size, count)
        if window is not None:
            windows.append(window)
    if len(windows) == len(output_size):
        return avg_pooled(t, x, windows, counts_padding=False, divisor=None)
    for axis, count in enumerate(output_size, start=first_axis):
        if x.shape[axis] != count:
            x = by_adaptive_windows(t, x, axis, count, _mean)
    return x


def _equal_windows(size: int, count: int) -> Window | None:
    """Return the window that makes ``count`` equal parts of ``size`` elements.

    None if the parts differ, or may differ at run time.
    """
    has_known_sizes = not is_dynamic(size) and not is_dynamic(count)
    if count != 1 and not (has_known_sizes and size % count == 0):
        return None
    length = size // count
    return Window(kernel=length, stride=length, before=0, after=0)


def adaptive_bounds(size: int, count: int) -> list[tuple[int, int]]:
    """Return start and end of torch's ``count`` adaptive windows over ``size`` elements.

    Windows may overlap: a size of 5 and a count of 2 give [(0, 3), (2, 5)].
    """
    bounds = []
    for number in range(count):
        start = number * size // count
        stop = -(-(number + 1) * size // count)  # rounded up
        bounds.append((start, stop))
    return bounds


def by_adaptive_windows(
    t: Tosa, x: Value, axis: int, count: int, reduce: Callable[[Tosa, Value], Value]
) -> Value:
    """x [*A,L,*B] -> [*A,count,*B]: reduces each adaptive window of ``axis`` by itself.

    ``reduce`` gets a window [N,n,W,1] and returns [N,1,W,1]. Raises Unsupported if
    ``count`` is known at run time only.
    """
    t.refuse_unless(
        not is_dynamic(count),
        f"how many windows there are, {count}, is known at run time only",
    )
    size = x.shape[axis]
    before = math.prod(x.shape[:axis])
    after = math.prod(x.shape[axis + 1 :])
    image = t.reshape(x, (before, size, after, 1))
    parts = []
    for start, stop in adaptive_bounds(size, count):
        window = slice_axis(t, image, 1, start, stop - start)
        parts.append(reduce(t, window))
    joined = concatenated(t, parts, 1)
    return t.reshape(joined, replace_axis(x.shape, axis, count))


def _mean(t: Tosa, x: Value) -> Value:
    """x [N,L,W,1] -> [N,1,W,1], the mean over L"""
    count = x.shape[1]
    if not is_dynamic(count):
        return t.avg_pool2d(x, kernel=(count, 1), stride=(1, 1), pad=(0, 0, 0, 0))
    # AVG_POOL2D has its kernel as an attribute, which cannot be known at run time only
    total = t.reduce_sum(converted(t, x, DType.FP32), 1)
    return converted(t, t.mul(total, 1 / count), x.dtype)


@lowers(aten.adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(t: Tosa, self: Value, output_size: Sequence[int]) -> Value:
    """[N,C,H,W] -> [N,C,*output_size]"""
    return adaptive_averaged(t, self, numbers(output_size, 2))


@lowers(aten.adaptive_avg_pool3d.default, aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool3d(t: Tosa, self: Value, output_size: Sequence[int]) -> Value:
    """[N,C,D,H,W] -> [N,C,*output_size]"""
    return adaptive_averaged(t, self, numbers(output_size, 3))
