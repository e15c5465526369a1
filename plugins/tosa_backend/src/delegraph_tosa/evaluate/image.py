"""Kernels of pooling and resizing (specification: Tensor Operators, RESIZE).

They compute the height first, then the width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..ir import operators as ops
from ..ir.graph import Array
from ..ir.operators.image import window_operands
from ..ir.types import NanMode, ResizeMode
from .kernels import Result, computes, extreme_of


@computes(ops.MAX_POOL2D)
def max_pool2d(op: ops.MAX_POOL2D, x: Array) -> Result:
    lowest = _lowest(x.dtype, op.nan_mode)
    return _pooled(op, x, lowest, extreme_of(op))


@computes(ops.MAX_POOL2D_ADAPTIVE)
def max_pool2d_adaptive(
    op: ops.MAX_POOL2D_ADAPTIVE, x: Array, *windows: Array
) -> Result:
    kernel, stride, pad = window_operands(op)
    pool = ops.MAX_POOL2D(
        (op.input,), kernel=kernel, stride=stride, pad=pad, nan_mode=op.nan_mode
    )
    return max_pool2d(pool, x)


@computes(ops.AVG_POOL2D_ADAPTIVE)
def avg_pool2d_adaptive(
    op: ops.AVG_POOL2D_ADAPTIVE,
    x: Array,
    input_zp: Array,
    output_zp: Array,
    *windows: Array,
) -> Result:
    kernel, stride, pad = window_operands(op)
    pool = ops.AVG_POOL2D(
        op.inputs[:3], kernel=kernel, stride=stride, pad=pad, acc_type=op.acc_type
    )
    return avg_pool2d(pool, x, input_zp, output_zp)


def _lowest(dtype: np.dtype[Any], nan_mode: NanMode) -> float | int:
    """Return the padding: the smallest number, or NaN, which IGNORE ignores."""
    if dtype.kind != "f":
        return int(np.iinfo(dtype).min)
    return np.nan if nan_mode is NanMode.IGNORE else -np.inf


@computes(ops.AVG_POOL2D)
def avg_pool2d(
    op: ops.AVG_POOL2D, x: Array, input_zp: Array, output_zp: Array
) -> Result:
    """Average windows.

    Padding counts neither in the sum nor in the number of elements.
    """
    counts = _counts(op, x.shape)
    if x.dtype.kind == "f":
        sums = _pooled(op, x.astype(np.float64), 0, np.add)
        return sums / counts
    centred = x.astype(np.int64) - input_zp.item()
    sums = _pooled(op, centred, 0, np.add)
    averages = _divided(sums, counts) + output_zp.item()
    limits = np.iinfo(x.dtype)
    return np.clip(averages, limits.min, limits.max)


class _WindowAxis(NamedTuple):
    """The windows of a pool along one axis: kernel size, stride and padding."""

    kernel: int
    stride: int
    before: int
    after: int


def _window_axes(op: ops.MAX_POOL2D | ops.AVG_POOL2D) -> tuple[_WindowAxis, ...]:
    """Return the windows along the height and along the width."""
    top, bottom, left, right = op.pad
    height = _WindowAxis(op.kernel[0], op.stride[0], top, bottom)
    width = _WindowAxis(op.kernel[1], op.stride[1], left, right)
    return height, width


def _pooled(
    op: ops.MAX_POOL2D | ops.AVG_POOL2D, x: Array, fill: float | int, combine: np.ufunc
) -> Result:
    """Return ``combine`` over the elements of each window: [N,OH,OW,C].

    ``fill`` is the padding.
    """
    for axis, window in enumerate(_window_axes(op), start=1):
        x = _pooled_axis(x, axis, window, fill, combine)
    return x


def _pooled_axis(
    x: Array, axis: int, window: _WindowAxis, fill: float | int, combine: np.ufunc
) -> Result:
    """Return ``combine`` over the elements of each window along ``axis``."""
    if window.before or window.after:
        padding = [(0, 0)] * x.ndim
        padding[axis] = (window.before, window.after)
        x = np.pad(x, padding, constant_values=fill)
    kernel = window.kernel
    if kernel == x.shape[axis]:
        return combine.reduce(x, axis=axis, keepdims=True)
    last_start = x.shape[axis] - kernel
    out: Array | None = None
    # element k of all windows at once, for each k
    for k in range(kernel):
        positions = slice(k, k + last_start + 1, window.stride)
        elements = x[(slice(None),) * axis + (positions,)]
        if out is None:
            out = elements.copy()
        else:
            combine(out, elements, out=out)
    return out


def _counts(op: ops.AVG_POOL2D, shape: Sequence[int]) -> Result:
    """Return how many elements of each window are not padding: [OH,OW,1]."""
    height, width = _window_axes(op)
    rows = _counts_axis(shape[1], height)
    columns = _counts_axis(shape[2], width)
    counts = rows[:, None] * columns
    return counts[:, :, None]


def _counts_axis(size: int, window: _WindowAxis) -> Result:
    """Return how many elements of each window along an axis are not padding."""
    past_last_start = size + window.after - window.kernel + 1
    starts = np.arange(-window.before, past_last_start, window.stride)
    ends = np.minimum(starts + window.kernel, size)
    return ends - np.maximum(starts, 0)


def _divided(sums: Array, counts: Array) -> Result:
    """Divide as the specification does: ``reciprocal_scale``, ``apply_scale_32``.

    It multiplies by a rounded fixed-point reciprocal of the counts, and shifts.
    """
    _, exponent = np.frexp((counts - 1).astype(np.float64))
    bits = exponent.astype(np.int64)
    multiplier = (np.int64((1 << 30) + 1) << bits) // counts
    shift = 30 + bits
    half = np.int64(1) << (shift - 1)
    return (sums * multiplier + half) >> shift


@computes(ops.RESIZE)
def resize(
    op: ops.RESIZE, x: Array, scale: Array, offset: Array, border: Array
) -> Result:
    """Resize [N,IH,IW,C] to [N,OH,OW,C].

    Bilinear integers are left multiplied by ``y_n * x_n``, as in the specification.
    """
    if op.mode is ResizeMode.BILINEAR:
        is_integer = x.dtype.kind == "i"
        x = x.astype(np.int64 if is_integer else np.float32, copy=False)
    y_n, y_d, x_n, x_d = scale.tolist()
    offset_y, offset_x = offset.tolist()
    border_y, border_x = border.tolist()
    rows = _positions(x.shape[1], y_n, y_d, offset_y, border_y)
    columns = _positions(x.shape[2], x_n, x_d, offset_x, border_x)
    x = _resized(x, 1, rows, op.mode)
    return _resized(x, 2, columns, op.mode)


class _Positions(NamedTuple):
    """Where the outputs of a RESIZE lie along one axis of the input.

    An output lies between the elements ``first`` and ``second``, remainder / n after
    the first.
    """

    first: Array
    second: Array
    remainder: Array
    n: int


def _positions(size: int, n: int, d: int, offset: int, border: int) -> _Positions:
    """Return the positions for an axis of ``size`` elements and the scale n / d."""
    count = ((size - 1) * n - offset + border) // d + 1
    before, remainder = np.divmod(np.arange(count) * d + offset, n)
    first = np.maximum(before, 0)
    second = np.minimum(before + 1, size - 1)
    return _Positions(first, second, remainder, n)


def _resized(x: Array, axis: int, positions: _Positions, mode: ResizeMode) -> Result:
    """Interpolate along one axis, or take the nearest elements."""
    first, second, remainder, n = positions
    if mode is ResizeMode.NEAREST:
        nearest = np.where(2 * remainder >= n, second, first)
        return np.take(x, nearest, axis=axis)
    # weights of both elements: in units of 1/n for integers, as fractions for floats
    if x.dtype.kind == "i":
        whole = n
        share = remainder
    else:
        whole = x.dtype.type(1)
        share = (remainder / n).astype(x.dtype)
    along_axis = (-1,) + (1,) * (x.ndim - 1 - axis)
    weight_of_first = (whole - share).reshape(along_axis)
    weight_of_second = share.reshape(along_axis)
    weighted_first = np.take(x, first, axis=axis) * weight_of_first
    return weighted_first + np.take(x, second, axis=axis) * weight_of_second
