"""Sums whole images on an Ethos-U, for averages with their own quantization.

A depthwise convolution with ones reads a kernel for every channel, and takes more than
a cycle for each element. But an image [N,H,W,C] is in memory one of H * W rows of C /
16 pixels with 16 channels each: one kernel for 16 channels sums its columns, in a sixth
of a cycle. If something else reads the image as well, Vela copies it, a cycle for each
element.
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
"""Channels of a kernel: the first of these that divides their number."""
TALLEST = 64
"""The most rows of a kernel on Ethos-U55.

Sums of so many int8, less their zero point, have 15 bits.
"""
SPARE = 15
"""Bits of an int16 without its sign."""


def sums_of_images(t: Tosa, x: Scaled) -> Scaled | None:
    """int8 x [N,C,H,W] -> the sums of each channel, [N,1,C/16,16] as int32.

    None where this does not do. A kernel sums up to 64 rows, and the next one these
    sums, as int16. That is exact up to 4,096 pixels; of more, low bits are rounded off,
    less than a hundredth of a step of the average.
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
    sums = Scaled(t.transpose(x.q, (0, 2, 3, 1)), x.scale, x.zero_point)
    rows = math.prod(size)
    for height in heights:
        if sums.q.dtype is DType.INT32:  # the results of a kernel before
            sums = _in_16_bits(t, sums)
        rows //= height
        sums = _summed(t, sums, (batch, height, rows * channels // lanes, lanes))
    return sums


def _heights(pixels: int) -> list[int]:
    """Return the heights of kernels that together sum so many pixels, few of them.

    They descend. A prime may be too large for one.
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
    """x -> the sums of the columns of its rows, int32 [N,1,W,C]

    The rows have the ``shape`` [N,H,W,C].
    """
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
    """Return sums as int16, divided by the power of two that this takes."""
    lost = max(0, sums.size.bit_length() - SPARE)
    scale = sums.scale.times(Scale(2.0**lost))
    integers = rescale(t, sums, scale.factor, 0, DType.INT16)
    return Scaled(integers, scale)
