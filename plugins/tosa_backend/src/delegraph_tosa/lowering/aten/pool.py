"""Pooling.

TOSA pools images [N,H,W,C]. Volumes are pooled in two steps: over height and width,
then over depth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from ...ir.dynamic_sizes import is_dynamic
from ...ir.graph import Value
from ...ir.types import ARRAY_DTYPES, FLOATS, DType
from ..builder import Tosa
from ..geometry.layout import batched, channels_first, channels_last, numbers, unbatched
from ..geometry.window import Pad, Window, exact, framed, windows
from ..promotion import converted
from ..registry import lowers
from .conv import concatenated
from .shape import every, slice_axis

aten = torch.ops.aten
Numbers = int | Sequence[int]
Pool = Callable[[Value, list[Window]], Value]
"""Pools an image [N,H,W,C] by the windows of H and W."""


def pooled(t: Tosa, x: Value, axes: list[Window], pool: Pool) -> Value:
    """x [N,C,*S] or [C,*S] -> [N,C,*S'] or [C,*S'], by ``pool`` over the last axes."""
    rank = len(axes) + 2
    image = batched(t, x, rank)
    y = _pooled_channels_last(t, t.transpose(image, channels_last(rank)), axes, pool)
    return unbatched(t, t.transpose(y, channels_first(rank)), x)


def _pooled_channels_last(t: Tosa, x: Value, axes: list[Window], pool: Pool) -> Value:
    """x [N,*S,C] -> [N,*S',C]. A volume takes two pools, the second along its depth."""
    n, *size, c = x.shape
    if len(axes) == 2:
        return pool(x, axes)
    y = pool(t.reshape(x, (n * size[0], *size[1:], c)), axes[1:])
    _, height, width, _ = y.shape
    z = pool(
        t.reshape(y, (n, size[0], height * width, c)), [axes[0], Window(1, 1, 0, 0)]
    )
    return t.reshape(z, (n, z.shape[1], height, width, c))


def windows_of(
    count: int,
    kernel: Numbers,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    ceil: bool,
) -> list[Window]:
    """Return the windows of a pool over ``count`` axes.

    An empty ``stride`` means the kernel's size, as in torch.
    """
    size = numbers(kernel, count)
    step = numbers(stride, count) if stride else size
    return windows(size, step, numbers(padding, count), numbers(dilation, count), ceil)


def _kernel_and_stride(axes: list[Window]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return sizes and strides of the windows, as TOSA takes them."""
    return tuple([a.kernel for a in axes]), tuple([a.stride for a in axes])


# ---- the largest


def max_pooled(t: Tosa, x: Value, axes: list[Window]) -> Value:
    """x [N,C,*S] or [C,*S] -> [N,C,*S'] or [C,*S'], the maxima; NaN if one is NaN"""
    if len(axes) == 1:
        image = t.reshape(x, (*x.shape[:-1], 1, x.shape[-1]))
        y = max_pooled(t, image, [Window(1, 1, 0, 0), *axes])
        return t.reshape(y, (*y.shape[:-2], y.shape[-1]))

    def pool(image: Value, windows: list[Window]) -> Value:
        """Max-pool ``image`` [N,H,W,C] by the windows of H and W.

        Axis by axis if one is dilated.
        """
        if any(w.dilation > 1 for w in windows):
            return _max_pooled_dilated(
                t, _max_pooled_dilated(t, image, 1, windows[0]), 2, windows[1]
            )
        image, pad = exact(t, image, windows, fill=-math.inf)
        return t.max_pool2d(image, *_kernel_and_stride(windows), pad)

    return pooled(t, x, axes, pool)


def _max_pooled_dilated(t: Tosa, x: Value, axis: int, window: Window) -> Value:
    """Return x [N,H,W,C] max-pooled along ``axis`` by a dilated window.

    MAX_POOL2D has no dilation. The axis is reshaped to rows of ``dilation`` elements.
    The elements of a window then follow one another in a column, which a window without
    dilation covers.
    """
    n, *size, c = x.shape
    length = x.shape[axis]
    d = window.dilation
    reach = (window.count(length) - 1) * window.stride + window.reach
    rows = -(-reach // d)
    frame = [(0, 0)] * 4
    frame[axis] = (window.before, rows * d - window.before - length)
    in_rows = (n, rows, d * size[1], c) if axis == 1 else (n * size[0], rows, d, c)
    lowest = (
        -math.inf if x.dtype in FLOATS else float(np.iinfo(ARRAY_DTYPES[x.dtype]).min)
    )
    y = t.reshape(framed(t, x, frame, lowest), in_rows)
    y = t.max_pool2d(y, (window.kernel, 1), (1, 1), (0, 0, 0, 0))
    in_line = list(x.shape)
    in_line[axis] = y.shape[1] * d
    # y has a window at each position: keep those at multiples of torch's stride
    starts = slice_axis(
        t,
        t.reshape(y, in_line),
        axis,
        0,
        (window.count(length) - 1) * window.stride + 1,
    )
    return starts if window.stride == 1 else every(t, starts, axis, window.stride)


def _register_max_pools() -> None:
    """Register the rules of the max pools over one, two and three axes."""
    for axes, overload in enumerate(
        (aten.max_pool1d.default, aten.max_pool2d.default, aten.max_pool3d.default), 1
    ):

        @lowers(overload)
        def max_pool(
            t: Tosa,
            self: Value,
            kernel_size: Numbers,
            stride: Numbers,
            padding: Numbers,
            dilation: Numbers,
            ceil_mode: bool,
            axes: int = axes,
        ) -> Value:
            """[N,C,*S] -> [N,C,*S']; NaN if one element is NaN"""
            return max_pooled(
                t,
                self,
                windows_of(axes, kernel_size, stride, padding, dilation, ceil_mode),
            )


_register_max_pools()


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
        """Average ``image`` [N,H,W,C] over the windows of H and W.

        Zeros are added where padding has to count.
        """
        image, pad = exact(t, image, windows)
        if divisor is not None:
            image = _zero_padded(t, image, pad)
            pad = (0, 0, 0, 0)
        elif counts_padding:
            ceil_pad = _ceil_padding(pad, windows)
            image = _zero_padded(
                t, image, [p - c for p, c in zip(pad, ceil_pad, strict=True)]
            )
            pad = ceil_pad
        return t.avg_pool2d(image, *_kernel_and_stride(windows), pad)

    y = pooled(t, x, axes, pool)
    return (
        y
        if divisor is None
        else t.mul(y, math.prod([a.kernel for a in axes]) / divisor)
    )


def _ceil_padding(pad: Pad, windows: list[Window]) -> Pad:
    """Return ``pad`` without the user's padding: torch never counts the rest.

    ceil_mode adds the rest.
    """
    return tuple(
        [
            n
            for k, w in enumerate(windows)
            for n in (0, max(pad[2 * k + 1] - w.after, 0))
        ]
    )


def _zero_padded(t: Tosa, x: Value, pad: Sequence[int]) -> Value:
    """Return x [N,H,W,C] with zeros around; pad is (top, bottom, left, right)."""
    return t.pad(x, (0, 0, *pad, 0, 0))


def _register_average_pools() -> None:
    """Register the rules of the average pools over two and three axes."""
    for axes, overload in enumerate(
        (aten.avg_pool2d.default, aten.avg_pool3d.default), 2
    ):

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
            axes: int = axes,
        ) -> Value:
            """[N,C,*S] -> [N,C,*S']"""
            windows = windows_of(axes, kernel_size, stride, padding, 1, ceil_mode)
            return avg_pooled(t, self, windows, count_include_pad, divisor_override)


_register_average_pools()


def adaptive_averaged(t: Tosa, x: Value, output_size: Sequence[int]) -> Value:
    """x [N,C,*S] or [C,*S] -> [N,C,*output_size] or [C,*output_size]

    If each size is a multiple of its output size, windows are equal, and this is one
    pool. Otherwise windows differ in length, and each is averaged by itself.
    """
    sizes = list(zip(x.shape[-len(output_size) :], output_size, strict=True))
    if all(
        out == 1 or (not is_dynamic(n) and not is_dynamic(out) and n % out == 0)
        for n, out in sizes
    ):
        # axis of n -> windows of n // out, one after the other
        return avg_pooled(
            t, x, [Window(n // out, n // out, 0, 0) for n, out in sizes], False, None
        )
    for axis, out in enumerate(output_size, start=x.rank - len(output_size)):
        if x.shape[axis] != out:
            x = by_parts(t, x, axis, out, _mean)
    return x


def adaptive_bounds(size: int, count: int) -> list[tuple[int, int]]:
    """Start and end of torch's ``count`` adaptive windows over ``size`` elements.

    Windows may overlap.
    """
    return [(k * size // count, -(-(k + 1) * size // count)) for k in range(count)]


def by_parts(
    t: Tosa, x: Value, axis: int, count: int, each: Callable[[Tosa, Value], Value]
) -> Value:
    """x [*A,L,*B] -> [*A,count,*B]: ``each`` over adaptive windows of ``axis``.

    ``each`` gets a window [N,n,W,1] and returns [N,1,W,1]. Raises Unsupported if
    ``count`` is known at run time only.
    """
    t.require(
        not is_dynamic(count),
        f"how many windows there are, {count}, is known at run time only",
    )
    before = math.prod(x.shape[:axis])
    after = math.prod(x.shape[axis + 1 :])
    image = t.reshape(x, (before, x.shape[axis], after, 1))
    bounds = adaptive_bounds(x.shape[axis], count)
    parts = [
        each(t, slice_axis(t, image, 1, start, stop - start)) for start, stop in bounds
    ]
    return t.reshape(
        concatenated(t, parts, 1), (*x.shape[:axis], count, *x.shape[axis + 1 :])
    )


def _mean(t: Tosa, x: Value) -> Value:
    """x [N,L,W,1] -> [N,1,W,1], the mean over L"""
    # AVG_POOL2D has its kernel as an attribute, which cannot be known at run time only
    count = x.shape[1]
    if not is_dynamic(count):
        return t.avg_pool2d(x, (count, 1), (1, 1), (0, 0, 0, 0))
    return converted(
        t, t.mul(t.reduce_sum(converted(t, x, DType.FP32), 1), 1 / count), x.dtype
    )


@lowers(aten.adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(t: Tosa, self: Value, output_size: Sequence[int]) -> Value:
    """[N,C,H,W] -> [N,C,*output_size]"""
    return adaptive_averaged(t, self, numbers(output_size, 2))


@lowers(aten.adaptive_avg_pool3d.default, aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool3d(t: Tosa, self: Value, output_size: Sequence[int]) -> Value:
    """[N,C,D,H,W] -> [N,C,*output_size]"""
    return adaptive_averaged(t, self, numbers(output_size, 3))
