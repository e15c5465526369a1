"""Softmax in integers: exp by tables, the sum in 32 bits, and one division a row by Newton's iterations.

No part of it is quantized to 8 bits, so what it loses does not show in 8 bits.
"""

from __future__ import annotations

import math

import torch

from ...ir.graph import Value
from ...ir.types import DType
from ..builder import Tosa
from ..layout import axis_of
from ..lazy import Lazy, Scaled
from ..quantization import Scale
from ..registry import lowers_quantized
from .arithmetic import addend
from .fixed_point import FRACTION, exp_of, exp_table, looked_up, reciprocal

aten = torch.ops.aten


def softmax_of(t: Tosa, x: Lazy, dim: int) -> Lazy:
    """x [*S] -> [*S]"""
    axis = axis_of(dim, x.rank)
    e = exponentials(t, addend(t, x), axis)
    inverse = reciprocal(t, t.reduce_sum(e, axis))
    return Scaled(t.mul(t.left_shift(e, inverse.shift), inverse.mantissa, shift=31), Scale(2.0**-FRACTION))


def exponentials(t: Tosa, x: Scaled, axis: int) -> Value:
    """exp(x - the largest x along ``axis``), int32 in some scale, of which a sum along the axis is below 2**30"""
    distance = t.sub(t.cast(x.q, DType.INT32), t.cast(t.reduce_max(x.q, axis), DType.INT32))
    room = 30 - math.ceil(math.log2(x.shape[axis]))
    t.require(room >= 15, f"a softmax over {x.shape[axis]} elements has too large a sum")
    if x.q.dtype is DType.INT8:
        return looked_up(t, t.cast(t.add(distance, 127), DType.INT8), exp_table(x.scale.factor, 15))
    return exp_of(t, Scaled(distance, x.scale), min(room, 23))


@lowers_quantized(aten.softmax.int)
def softmax(t: Tosa, self: Lazy, dim: int, dtype: torch.dtype | None) -> Lazy:
    """[*S] -> [*S]"""
    t.require(dtype in (None, torch.float32), f"a softmax in {dtype} is not lowered")
    return softmax_of(t, self, dim)


@lowers_quantized(aten._softmax.default)
def softmax_default(t: Tosa, self: Lazy, dim: int, half_to_float: bool) -> Lazy:
    """[*S] -> [*S]"""
    return softmax_of(t, self, dim)
