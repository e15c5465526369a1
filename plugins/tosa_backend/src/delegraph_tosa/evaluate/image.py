"""Kernels of pooling and resizing (specification: Tensor Operators, RESIZE).

Both axes are done one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir import operators as ops
from ..ir.graph import Array
from ..ir.operators.image import window_operands
from ..ir.types import NanMode, ResizeMode
from .kernels import Result, computes, extreme_of


@computes(ops.MAX_POOL2D)
def max_pool2d(op: ops.MAX_POOL2D, x: Array) -> Result:
    return _pooled(op, x, _lowest(x.dtype, op.nan_mode), extreme_of(op))


@computes(ops.MAX_POOL2D_ADAPTIVE)
def max_pool2d_adaptive(
    op: ops.MAX_POOL2D_ADAPTIVE, x: Array, *windows: Array
) -> Result:
    kernel, stride, pad = window_operands(op)
    return max_pool2d(
        ops.MAX_POOL2D(
            (op.input,), kernel=kernel, stride=stride, pad=pad, nan_mode=op.nan_mode
        ),
        x,
    )


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
    """Return the value of padding: the smallest, or NaN, which IGNORE drops."""
    if dtype.kind != "f":
        return int(np.iinfo(dtype).min)
    return np.nan if nan_mode is NanMode.IGNORE else -np.inf


@computes(ops.AVG_POOL2D)
def avg_pool2d(
    op: ops.AVG_POOL2D, x: Array, input_zp: Array, output_zp: Array
) -> Result:
    """Padding counts neither in the sum nor in the number of elements."""
    floats = x.dtype.kind == "f"
    wide = x.astype(np.float64 if floats else np.int64)
    sums = _pooled(op, wide if floats else wide - input_zp.item(), 0, np.add)
    counts = _counts(op, x.shape)
    if floats:
        return sums / counts
    limits = np.iinfo(x.dtype)
    return np.clip(_divided(sums, counts) + output_zp.item(), limits.min, limits.max)


def _pooled(
    op: ops.MAX_POOL2D | ops.AVG_POOL2D, x: Array, fill: float | int, combine: np.ufunc
) -> Result:
    """[N,IH,IW,C] -> [N,OH,OW,C]: ``combine`` over rows of a window, then columns."""
    for axis in (0, 1):
        x = _pooled_axis(
            x,
            axis + 1,
            op.kernel[axis],
            op.stride[axis],
            op.pad[2 * axis : 2 * axis + 2],
            fill,
            combine,
        )
    return x


def _pooled_axis(
    x: Array,
    axis: int,
    kernel: int,
    stride: int,
    pad: Sequence[int],
    fill: float | int,
    combine: np.ufunc,
) -> Result:
    if any(pad):
        edges = [
            np.full((*x.shape[:axis], p, *x.shape[axis + 1 :]), fill, x.dtype)
            for p in pad
        ]
        x = np.concatenate([edges[0], x, edges[1]], axis=axis)
    if kernel == x.shape[axis]:
        return combine.reduce(x, axis=axis, keepdims=True)
    last = x.shape[axis] - kernel
    taps = [
        x[(slice(None),) * axis + (slice(k, k + last + 1, stride),)]
        for k in range(kernel)
    ]
    out = taps[0].copy()
    for tap in taps[1:]:
        combine(out, tap, out=out)
    return out


def _counts(op: ops.AVG_POOL2D, shape: Sequence[int]) -> Result:
    """[OH,OW,1]: elements of each window that are not padding."""
    rows, columns = (
        _counts_axis(
            shape[axis + 1],
            op.kernel[axis],
            op.stride[axis],
            op.pad[2 * axis : 2 * axis + 2],
        )
        for axis in (0, 1)
    )
    return (rows[:, None] * columns)[:, :, None]


def _counts_axis(size: int, kernel: int, stride: int, pad: Sequence[int]) -> Result:
    begin = np.arange(-pad[0], size + pad[1] - kernel + 1, stride)
    return np.minimum(begin + kernel, size) - np.maximum(begin, 0)


def _divided(sums: Array, counts: Array) -> Result:
    """Divide as the specification does: ``reciprocal_scale``, ``apply_scale_32``."""
    _, exponent = np.frexp((counts - 1).astype(np.float64))
    bits = exponent.astype(np.int64)
    multiplier = (np.int64((1 << 30) + 1) << bits) // counts
    shift = 30 + bits
    return (sums * multiplier + (np.int64(1) << (shift - 1))) >> shift


@computes(ops.RESIZE)
def resize(
    op: ops.RESIZE, x: Array, scale: Array, offset: Array, border: Array
) -> Result:
    """[N,IH,IW,C] -> [N,OH,OW,C]. Bilinear integers stay scaled by ``y_n * x_n``."""
    if x.dtype.kind == "i" and op.mode is ResizeMode.BILINEAR:
        x = x.astype(np.int64)
    elif op.mode is ResizeMode.BILINEAR:
        x = x.astype(np.float32, copy=False)
    for axis in (0, 1):
        n, d = scale.tolist()[2 * axis : 2 * axis + 2]
        x = _resized(x, axis + 1, n, d, int(offset[axis]), int(border[axis]), op.mode)
    return x


def _resized(
    x: Array, axis: int, n: int, d: int, offset: int, border: int, mode: ResizeMode
) -> Result:
    size = x.shape[axis]
    out = ((size - 1) * n - offset + border) // d + 1
    before, remainder = np.divmod(np.arange(out) * d + offset, n)
    first = np.maximum(before, 0)
    second = np.minimum(before + 1, size - 1)
    if mode is ResizeMode.NEAREST:
        return np.take(x, np.where(2 * remainder >= n, second, first), axis=axis)
    share = remainder if x.dtype.kind == "i" else (remainder / n).astype(x.dtype)
    whole = n if x.dtype.kind == "i" else x.dtype.type(1)
    along = (-1,) + (1,) * (x.ndim - 1 - axis)
    near = np.take(x, first, axis=axis) * (whole - share).reshape(along)
    return near + np.take(x, second, axis=axis) * share.reshape(along)
