"""Pooling of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ...ir.graph import Value
from ..builder import Tosa
from ..layout import NCHW, NHWC, Pair, batched, pair, unbatched
from ..registry import lowers
from ..window import Pad, exact, windows
from .conv import joined

aten = torch.ops.aten
Numbers = int | Sequence[int]


def _on_nhwc(t: Tosa, x: Value, pool: Callable[[Value], Value]) -> Value:
    """``pool`` of the image x [N,C,H,W] or [C,H,W], which it sees as [N,H,W,C]."""
    y = t.transpose(pool(t.transpose(batched(t, x, 4), NHWC)), NCHW)
    return unbatched(t, y, x)


def _stride(stride: Numbers, kernel: Pair) -> Pair:
    """No stride given means that windows do not overlap."""
    return pair(stride) if stride else kernel


@lowers(aten.max_pool2d.default)
def max_pool2d(
    t: Tosa,
    self: Value,
    kernel_size: Numbers,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    ceil_mode: bool,
) -> Value:
    """[N,C,H,W] -> [N,C,H',W']; NaN wins"""
    kernel = pair(kernel_size)
    step = _stride(stride, kernel)
    t.require(pair(dilation) == (1, 1), f"max_pool2d with dilation {list(pair(dilation))} is not lowered")
    axes = windows(kernel, step, pair(padding), ceil=ceil_mode)

    def pool(x: Value) -> Value:
        x, pad = exact(t, x, axes)
        return t.max_pool2d(x, kernel, step, pad)

    return _on_nhwc(t, self, pool)


@lowers(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(
    t: Tosa,
    self: Value,
    kernel_size: Numbers,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    ceil_mode: bool,
) -> tuple[Value, None]:
    """[N,C,H,W] -> [N,C,H',W']; the indices are not lowered"""
    return max_pool2d(t, self, kernel_size, stride, padding, dilation, ceil_mode), None


@lowers(aten.avg_pool2d.default)
def avg_pool2d(
    t: Tosa,
    self: Value,
    kernel_size: Numbers,
    stride: Numbers,
    padding: Numbers,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Value:
    """[N,C,H,W] -> [N,C,H',W']. TOSA divides by the elements that are no padding: padding that counts becomes zeros."""
    kernel, margin = pair(kernel_size), pair(padding)
    step = _stride(stride, kernel)
    axes = windows(kernel, step, margin, ceil=ceil_mode)

    def pool(x: Value) -> Value:
        x, pad = exact(t, x, axes)
        if divisor_override is not None:
            whole = t.avg_pool2d(_zero_padded(t, x, pad), kernel, step, (0, 0, 0, 0))
            return t.mul(whole, kernel[0] * kernel[1] / divisor_override)
        if count_include_pad:
            rest = _beyond(pad, margin)
            x, pad = _zero_padded(t, x, (pad[0], pad[1] - rest[1], pad[2], pad[3] - rest[3])), rest
        return t.avg_pool2d(x, kernel, step, pad)

    return _on_nhwc(t, self, pool)


def _beyond(pad: Pad, margin: Pair) -> Pad:
    """What ceil_mode adds behind the padding; that never counts."""
    return 0, max(pad[1] - margin[0], 0), 0, max(pad[3] - margin[1], 0)


def _zero_padded(t: Tosa, x: Value, pad: Pad) -> Value:
    """x [N,H,W,C] with zeros around; pad is (top, bottom, left, right)."""
    return t.pad(x, (0, 0, *pad, 0, 0))


@lowers(aten.adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(t: Tosa, self: Value, output_size: Sequence[int]) -> Value:
    """[N,C,H,W] -> [N,C,*output_size]"""
    size = pair(output_size)

    def pool(x: Value) -> Value:
        if x.shape[1] % size[0] == 0 and x.shape[2] % size[1] == 0:
            kernel = (x.shape[1] // size[0], x.shape[2] // size[1])
            return t.avg_pool2d(x, kernel, kernel, (0, 0, 0, 0))
        return _uneven(t, _uneven(t, x, 1, size[0]), 2, size[1])

    return _on_nhwc(t, self, pool)


def _uneven(t: Tosa, x: Value, axis: int, count: int) -> Value:
    """x [N,H,W,C] with ``axis`` averaged to ``count`` elements whose windows differ in size and may overlap."""
    size = x.shape[axis]
    bounds = [(k * size // count, -(-(k + 1) * size // count)) for k in range(count)]
    return joined(t, [_averaged(t, x, axis, start, stop) for start, stop in bounds], axis)


def _averaged(t: Tosa, x: Value, axis: int, start: int, stop: int) -> Value:
    """The mean of elements ``start`` .. ``stop`` of ``axis``, which is 1 (height) or 2 (width)."""
    begin, size = [0] * 4, list(x.shape)
    begin[axis], size[axis] = start, stop - start
    kernel = (stop - start, 1) if axis == 1 else (1, stop - start)
    return t.avg_pool2d(t.slice(x, begin, size), kernel, (1, 1), (0, 0, 0, 0))
