"""Replaces slow TRANSPOSEs of few channels by convolutions, on some NPUs."""

from __future__ import annotations

import math

import numpy as np

from ..ir.dynamic_sizes import is_dynamic
from ..ir.graph import Graph, Operator, literal
from ..ir.operators import CONV2D, RESCALE, TRANSPOSE
from ..ir.types import DType, RoundingMode, Type
from ..spec import TosaSpec
from .rewriter import Rewrite, sweep

SLOW = frozenset({"u55", "u65", "u85"})
"""Devices on which TRANSPOSE takes some cycles per pixel (decision 28)."""
MOST_CHANNELS = 4
"""Pixels with more channels are transposed about as fast as they are convolved."""
LEAST_PIXELS = 4096
"""Below, both take next to nothing."""
GROUPS = (16, 8, 4)
"""Pixels per position of the convolution, the best first, for U85 and U55."""


def transpose_by_convolution(graph: Graph, spec: TosaSpec) -> Graph:
    """Replace a TRANSPOSE of int8 with few channels by a convolution of ones.

    before: TRANSPOSE [1,3,224,224] -> [1,224,224,3] after:  RESHAPE [1,3,3136,16] -
    CONV2D [48,3,1,16] - RESCALE by 1 - RESHAPE [1,224,224,3]

    Each position of the convolution reads 16 neighbouring pixels of all channels, and
    writes them pixel by pixel. No integer is rounded. On an Ethos-U85-256 this takes
    38,236 cycles in place of 401,582, on a U55-128 77,364 in place of 112,896.
    """
    if SLOW.isdisjoint(spec.devices):
        return graph
    return sweep(graph, lambda operator, rewrite: _convolved(operator, rewrite, spec))


def _convolved(operator: Operator, rewrite: Rewrite, spec: TosaSpec) -> Operator:
    """Return the last operator of the convolution that replaces ``operator``.

    Returns ``operator`` itself if none does.
    """
    if (
        not isinstance(operator, TRANSPOSE)
        or operator.inputs[0].dtype is not DType.INT8
    ):
        return operator
    shape = operator.outputs[0].shape
    channels = operator.inputs[0].shape[1:2]
    if (
        any(map(is_dynamic, shape))
        or shape[0] != 1
        or operator.perms != (0, *range(2, len(shape)), 1)
    ):
        return operator
    pixels = math.prod(shape[1:-1])
    group = next((n for n in GROUPS if pixels % n == 0), None)
    if group is None or pixels < LEAST_PIXELS or not 1 < channels[0] <= MOST_CHANNELS:
        return operator
    steps = _steps(operator, channels[0], pixels, group)
    if any(spec.why_not(step) is not None for step in steps):
        return operator
    rewrite.operators += steps[:-1]
    return steps[-1]


def _steps(
    operator: Operator, channels: int, pixels: int, group: int
) -> list[Operator]:
    """Return RESHAPE, CONV2D, RESCALE, RESHAPE for a TRANSPOSE, by ``group`` pixels."""
    made = Rewrite()
    source = operator.source
    # output channel p * channels + c of the convolution is pixel p of channel c, which
    # lies in row c, channel p
    weight = np.zeros((group, channels, channels, 1, group), np.int8)
    for pixel, channel in np.ndindex(group, channels):
        weight[pixel, channel, channel, 0, pixel] = 1
    ones = literal(weight.reshape(-1, *weight.shape[2:]), DType.INT8, np.int8)
    narrow = literal([0], DType.INT8, np.int8)
    wide = literal([0], DType.INT32, np.int32)
    x = made.reshape(operator.inputs[0], (1, channels, pixels // group, group), source)
    window = {
        "pad": (0, 0, 0, 0),
        "stride": (1, 1),
        "dilation": (1, 1),
        "acc_type": DType.INT32,
    }
    result = (1, 1, pixels // group, group * channels)
    sums = made.make(
        CONV2D,
        (x, ones, wide, narrow, narrow),
        Type(result, DType.INT32),
        source,
        **window,
    )
    one = literal([1 << 30], DType.INT32, np.int32), literal([30], DType.INT8, np.int8)
    flags = {
        "scale32": True,
        "rounding_mode": RoundingMode.SINGLE_ROUND,
        "per_channel": False,
    }
    signs = {"input_unsigned": False, "output_unsigned": False, "dtype": DType.INT8}
    y = made.make(
        RESCALE,
        (sums, *one, wide, narrow),
        Type(result, DType.INT8),
        source,
        **flags,
        **signs,
    )
    last = made.reshape(y, operator.outputs[0].shape, source)
    last.name = operator.outputs[0].name
    return made.operators
