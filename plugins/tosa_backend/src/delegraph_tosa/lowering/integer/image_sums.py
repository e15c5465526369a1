"""Sums whole images on an Ethos-U, for averages with their own quantization.

A depthwise convolution with ones sums each channel of an image [N,H,W,C]. It reads a
kernel for every channel, which takes more than a cycle for each element. A reshape to
[N,H*W,C/16,16] is faster: an image of C/16 columns with 16 channels, of which one kernel
sums the columns. That takes a sixth of a cycle for each element. If another operator
reads the image too, Vela copies it, which takes a cycle for each element.
"""

from __future__ import annotations

import math

import numpy as np

from ...ir.dynamic_sizes import is_dynamic
from ...ir.graph import literal
from ...ir.types import DType
from ..builder import Shape, Tosa
from ..lazy.lazy_values import Scaled, rescale
from ..lazy.quantization import Scale
from .products import WIDE, Accumulating

DEVICES = frozenset({"u55", "u85"})
LANES = 16, 8
"""Channels of a kernel: the first of these that divides the image's channels."""
TALLEST = 64
"""The most rows of a kernel on Ethos-U55.

Sums of so many int8, less their zero point, have 15 bits.
"""
SPARE = 15
"""Bits of an int16 without its sign."""


def sums_of_images(t: Tosa, x: Scaled) -> Scaled | None:
    """int8 x [N,C,H,W] -> the sums of each channel, [N,1,C/16,16] as int32.

    Returns None if the device or the shape does not allow it. A kernel sums up to 64
    rows; the next kernel sums these sums, as int16. Up to 4,096 pixels the result is
    exact. Above, low bits are rounded off: less than a hundredth of a step of the
    average.
    """
    if x.q.dtype is not DType.INT8 or not DEVICES & t.spec.devices:
        return None
    if any(map(is_dynamic, x.shape)):
        return None
    batch, channels, *size = x.shape
    lanes = next((lanes for lanes in LANES if channels % lanes == 0), None)
    heights = _heights(math.prod(size))
    if lanes is None or heights[0] > TALLEST:
        return None
    if len(heights) > 1 and "int16" not in t.spec.extensions:
        return None
    sums = x.with_integers(t.transpose(x.q, (0, 2, 3, 1)))
    rows = math.prod(size)
    for height in heights:
        if sums.q.dtype is DType.INT32:
            # these are the sums of a kernel before
            sums = _in_16_bits(t, sums)
        rows //= height
        sums = _summed(t, sums, (batch, height, rows * channels // lanes, lanes))
    return sums


def _heights(pixels: int) -> list[int]:
    """Return heights of kernels with the product ``pixels``, such as [64, 49] for 3136.

    They descend. A prime factor above TALLEST becomes a height as well.
    """
    if pixels <= 1:
        return [1]
    heights: list[int] = []
    while pixels > 1:
        divisors = (n for n in range(TALLEST, 1, -1) if pixels % n == 0)
        height = next(divisors, pixels)
        heights.append(height)
        pixels //= height
    return sorted(heights, reverse=True)


def _summed(t: Tosa, x: Scaled, shape: Shape) -> Scaled:
    """Reshape x to ``shape`` [N,H,W,C], and return its sums over H, int32 [N,1,W,C]."""
    rows = t.reshape(x.q, shape)
    _, height, _, channels = shape
    kernel = (height, 1, channels, 1)
    ones = t.once(
        ("ones", kernel), lambda: literal(np.ones(kernel), DType.INT8, np.int8)
    )
    builder = Accumulating(t, WIDE[x.q.dtype], left=x.zero_point, right=0)
    no_bias = builder.no_bias(rows)
    sums = builder.depthwise_conv2d(
        rows, ones, no_bias, pad=(0, 0, 0, 0), stride=(1, 1), dilation=(1, 1)
    )
    return Scaled(sums, x.scale.times(builder.unit))


def _in_16_bits(t: Tosa, sums: Scaled) -> Scaled:
    """Return sums as int16, divided by the least power of two that makes them fit."""
    lost = max(0, sums.size.bit_length() - SPARE)
    scale = sums.scale.times(Scale(2.0**lost))
    integers = rescale(t, sums, scale.factor, 0, DType.INT16)
    return Scaled(integers, scale)
