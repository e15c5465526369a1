"""Replaces slow TRANSPOSEs of few channels by convolutions, on some NPUs."""

from __future__ import annotations

import math

import numpy as np

from ..ir.dynamic_sizes import is_dynamic
from ..ir.graph import Graph, Operator, Value, literal
from ..ir.operators import CONV2D, RESCALE, TRANSPOSE
from ..ir.types import DType, RoundingMode, Type
from ..spec import TosaSpec
from .rewriter import Rewrite, sweep

SLOW = frozenset({"u55", "u65", "u85"})
"""Devices on which TRANSPOSE takes some cycles per pixel (docs/decisions/0028)."""
MOST_CHANNELS = 4
"""With more channels, TRANSPOSE is about as fast as the convolution."""
LEAST_PIXELS = 4096
"""With fewer pixels, both take next to no time."""
GROUP_SIZES = (16, 8, 4)
"""Pixels per position of the convolution, the fastest number first."""


def transpose_by_convolution(graph: Graph, spec: TosaSpec) -> Graph:
    """Replace a TRANSPOSE of int8 with few channels by a convolution.

    before: TRANSPOSE [1,3,224,224] -> [1,224,224,3]
    after:  RESHAPE [1,3,3136,16] - CONV2D [48,3,1,16] - RESCALE by 1
            - RESHAPE [1,224,224,3]

    Each position of the convolution reads 16 neighbouring pixels of all channels, and
    writes them pixel by pixel. Its weight has only zeros and ones, so no integer
    changes. On an Ethos-U85-256 this takes 38,236 cycles instead of 401,582, and on a
    U55-128 77,364 instead of 112,896.
    """
    if SLOW.isdisjoint(spec.devices):
        return graph

    def change(operator: Operator, rewrite: Rewrite) -> Operator:
        if not _moves_few_channels(operator):
            return operator
        return _convolved(operator, rewrite, spec)

    return sweep(graph, change)


def _moves_few_channels(operator: Operator) -> bool:
    """Return whether ``operator`` moves the channels of an int8 image to the end."""
    if not isinstance(operator, TRANSPOSE):
        return False
    x = operator.inputs[0]
    if x.dtype is not DType.INT8 or any(map(is_dynamic, x.shape)):
        return False
    if operator.perms != (0, *range(2, x.rank), 1):
        return False
    batch, channels, *_ = x.shape
    return batch == 1 and 1 < channels <= MOST_CHANNELS


def _convolved(operator: Operator, rewrite: Rewrite, spec: TosaSpec) -> Operator:
    """Return the last of the operators that replace a TRANSPOSE.

    The others are added to ``rewrite``. Returns ``operator`` itself if the image is
    small or cannot be divided into groups of pixels, or if the target lacks one of the
    operators.
    """
    _, channels, *size = operator.inputs[0].shape
    pixels = math.prod(size)
    group = next((size for size in GROUP_SIZES if pixels % size == 0), None)
    if group is None or pixels < LEAST_PIXELS:
        return operator
    steps = _steps(operator, channels, pixels, group)
    if any(spec.why_not(step) is not None for step in steps):
        return operator
    rewrite.operators += steps[:-1]
    return steps[-1]


def _steps(
    operator: Operator, channels: int, pixels: int, group: int
) -> list[Operator]:
    """Return RESHAPE, CONV2D, RESCALE, RESHAPE that replace a TRANSPOSE.

    Each position of the CONV2D reads ``group`` pixels.
    """
    made = Rewrite()
    source = operator.source
    positions = pixels // group
    x = made.reshape(operator.inputs[0], (1, channels, positions, group), source)
    zero = literal([0], DType.INT8, np.int8)
    wide_zero = literal([0], DType.INT32, np.int32)
    shape = (1, 1, positions, group * channels)
    sums = made.make(
        CONV2D,
        (x, _weight(channels, group), wide_zero, zero, zero),
        Type(shape, DType.INT32),
        source,
        pad=(0, 0, 0, 0),
        stride=(1, 1),
        dilation=(1, 1),
        acc_type=DType.INT32,
    )
    multiplier = literal([1 << 30], DType.INT32, np.int32)
    shift = literal([30], DType.INT8, np.int8)
    y = made.make(
        RESCALE,
        (sums, multiplier, shift, wide_zero, zero),
        Type(shape, DType.INT8),
        source,
        scale32=True,
        rounding_mode=RoundingMode.SINGLE_ROUND,
        per_channel=False,
        input_unsigned=False,
        output_unsigned=False,
        dtype=DType.INT8,
    )
    last = made.reshape(y, operator.outputs[0].shape, source)
    last.name = operator.outputs[0].name
    return made.operators


def _weight(channels: int, group: int) -> Value:
    """Return the weight [group * channels, channels, 1, group] of the convolution.

    Output channel ``p * channels + c`` is pixel p of channel c. The reshaped image has
    it in row c, channel p.
    """
    weight = np.zeros((group, channels, channels, 1, group), np.int8)
    for pixel, channel in np.ndindex(group, channels):
        weight[pixel, channel, channel, 0, pixel] = 1
    return literal(weight.reshape(-1, channels, 1, group), DType.INT8, np.int8)
