"""Kernels of convolutions (specification: Tensor Operators).

They copy windows to a matrix, a few rows of the image at a time, and multiply it by the
weight. In comments on shapes, ``*S`` are the spatial axes and ``*K`` those of a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ..ir import operators as ops
from ..ir.graph import Array
from ..ir.operators.convolution import Windowed
from .kernels import computes
from .matmul import accumulator, centred

BLOCK = 1 << 19
"""Elements of a temporary: enough for a fast product, few enough for the cache."""


@computes(ops.CONV2D, ops.CONV3D)
def conv(
    op: Windowed,
    input: Array,
    weight: Array,
    bias: Array,
    input_zp: Array,
    weight_zp: Array,
) -> Array:
    """Convolve [N,*S,IC] by a weight [OC,*K,IC] to [N,*S',OC]."""
    dtype = accumulator(input, weight, math.prod(weight.shape[1:]))
    x = padded(centred(input, input_zp, dtype), op.pad)
    kernel = centred(weight, weight_zp, dtype)
    sums = correlate(x, kernel, op.stride, op.dilation)
    return biased(sums, bias)


@computes(ops.DEPTHWISE_CONV2D)
def depthwise_conv2d(
    op: ops.DEPTHWISE_CONV2D,
    input: Array,
    weight: Array,
    bias: Array,
    input_zp: Array,
    weight_zp: Array,
) -> Array:
    """[N,IH,IW,C], weight [KH,KW,C,M] -> [N,OH,OW,C*M]: a sum over the KH*KW taps."""
    *kernel, _, multiplier = weight.shape
    dtype = accumulator(input, weight, math.prod(kernel))
    x = padded(centred(input, input_zp, dtype), op.pad)
    if multiplier > 1:
        x = np.repeat(x, multiplier, axis=3)
    taps = centred(weight, weight_zp, dtype).reshape(*kernel, -1)
    view = windows(x, kernel, op.stride, op.dilation)
    return biased(_correlate_channels(view, taps), bias)


@computes(ops.TRANSPOSE_CONV2D)
def transpose_conv2d(
    op: ops.TRANSPOSE_CONV2D,
    input: Array,
    weight: Array,
    bias: Array,
    input_zp: Array,
    weight_zp: Array,
) -> Array:
    """[N,IH,IW,IC], weight [OC,KH,KW,IC] -> [N,OH,OW,OC], one product for each tap."""
    dtype = accumulator(input, weight, math.prod(weight.shape[1:]))
    x = centred(input, input_zp, dtype)
    taps = centred(weight, weight_zp, dtype)
    n, ih, iw, _ = x.shape
    oc, kh, kw, _ = taps.shape
    sy, sx = op.stride
    height = (ih - 1) * sy + 1
    width = (iw - 1) * sx + 1
    # the result without out_pad; each tap of the kernel adds to every sy-th row and
    # every sx-th column
    whole = np.zeros((n, height + kh - 1, width + kw - 1, oc), dtype)
    for ky, kx in np.ndindex(kh, kw):
        rows = slice(ky, ky + height, sy)
        columns = slice(kx, kx + width, sx)
        whole[:, rows, columns] += x @ taps[:, ky, kx].T
    return biased(_with_out_pad(whole, op.out_pad), bias)


def biased(sums: Array, bias: Array) -> Array:
    """Add the bias to sums in the result's type, as the specification does."""
    dtype = bias.dtype if bias.dtype.kind == "f" else np.int64
    out = sums.astype(dtype, copy=False)
    out += bias
    return out


def padded(x: Array, pad: Sequence[int]) -> Array:
    """Return [N,*S,C] with zeros around the axes *S.

    ``pad`` is a flat list of (before, after) for each axis. Returns ``x`` itself if all
    are 0.
    """
    if not any(pad):
        return x
    sizes: list[int] = []
    inside: list[slice] = []
    for size, before, after in zip(x.shape[1:-1], pad[::2], pad[1::2], strict=True):
        sizes.append(before + size + after)
        inside.append(slice(before, before + size))
    out = np.zeros((x.shape[0], *sizes, x.shape[-1]), x.dtype)
    out[(slice(None), *inside)] = x
    return out


def _with_out_pad(whole: Array, out_pad: Sequence[int]) -> Array:
    """Add zeros around the spatial axes; negative entries of ``out_pad`` cut them."""
    cuts = [max(-n, 0) for n in out_pad]
    inside: list[slice] = []
    for size, before, after in zip(
        whole.shape[1:-1], cuts[::2], cuts[1::2], strict=True
    ):
        inside.append(slice(before, size - after))
    kept = whole[(slice(None), *inside)]
    return padded(kept, [max(n, 0) for n in out_pad])


def windows(
    x: Array, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Array:
    """Return a view [N,*S',*K,C] of [N,*S,C]: the elements of each window."""
    spatial: Any = tuple(range(1, x.ndim - 1))
    reach = tuple([(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)])
    # [N,*S',C,*R], for windows that begin at each element
    view = sliding_window_view(x, reach, axis=spatial)
    by_stride = [slice(None, None, step) for step in stride]
    by_dilation = [slice(None, None, step) for step in dilation]
    selected = view[(slice(None), *by_stride, slice(None), *by_dilation)]
    channels = len(spatial) + 1
    return np.moveaxis(selected, channels, -1)


def correlate(
    x: Array, weight: Array, stride: Sequence[int], dilation: Sequence[int]
) -> Array:
    """Convolve [N,*S,IC], which is padded already, by [OC,*K,IC] to [N,*S',OC]."""
    oc, *kernel, ic = weight.shape
    matrix = weight.reshape(oc, -1).T
    if math.prod(kernel) == math.prod(stride) == 1:
        product: Array = x.reshape(-1, ic) @ matrix
        return product.reshape(*x.shape[:-1], oc)
    view = windows(x, kernel, stride, dilation)
    images, rows, *others = view.shape
    out = np.empty((*view.shape[: x.ndim - 1], oc), x.dtype)
    for block in _blocks(images, rows, math.prod(others)):
        vectors = view[block].reshape(-1, matrix.shape[0])
        out[block] = (vectors @ matrix).reshape(out[block].shape)
    return out


def _correlate_channels(view: Array, taps: Array) -> Array:
    """Multiply windows [N,OH,OW,KH,KW,C] by taps [KH,KW,C], and sum: [N,OH,OW,C]."""
    n, oh, ow, kh, kw, c = view.shape
    _, *other_taps = np.ndindex(kh, kw)
    out = np.empty((n, oh, ow, c), view.dtype)
    for block in _blocks(n, oh, ow * c * 16):
        rows = view[block]
        sums = out[block]
        product = np.empty_like(sums)
        np.multiply(rows[:, :, :, 0, 0], taps[0, 0], out=sums)
        for ky, kx in other_taps:
            np.multiply(rows[:, :, :, ky, kx], taps[ky, kx], out=product)
            sums += product
    return out


def _blocks(images: int, rows: int, row_elements: int) -> Iterator[tuple[slice, slice]]:
    """Yield slices of images and rows that cover all, of about ``BLOCK`` elements.

    A block has several whole images, or rows of one image.
    """
    image_step = max(1, BLOCK // (rows * row_elements))
    row_step = rows if image_step > 1 else max(1, BLOCK // row_elements)
    for image in range(0, images, image_step):
        for row in range(0, rows, row_step):
            yield slice(image, image + image_step), slice(row, row + row_step)
