"""Interpolation of quantized images.

RESIZE multiplies integers by integer weights and returns sums of 32 or 48 bits. If
RESIZE cannot express an interpolation, weighted sums are computed in fixed point, along
one axis after the other.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from delegraph.errors import Unsupported

from ...evaluate import materialize
from ...ir.graph import Value, literal
from ...ir.types import DType, ResizeMode
from ..builder import Shape, Tosa
from ..lazy.lazy_values import BITS, Lazy, Scaled, operand
from ..lazy.quantization import Scale, multipliers
from ..registry import lowering_of, lowers
from ..torch_values.tensor_types import refused
from .sums import centred

aten = torch.ops.aten
_NO_FRACTIONS = "its sizes are no fractions that RESIZE can express"


class Resizing(Tosa):
    """A builder for one RESIZE of integers.

    RESIZE does not divide by the sum of its integer weights. So the result is
    ``weight`` times too large, where ``weight`` is that sum. If RESIZE cannot express
    the call, the float rule computes weighted sums: their operators, MUL and MATMUL,
    raise Unsupported here.
    """

    weight = 1

    def __init__(self, t: Tosa) -> None:
        """Create a builder that appends to the operators of ``t``."""
        self.__dict__.update(t.__dict__)

    def resize(
        self, x: Value, scale: Shape, offset: Shape, border: Shape, mode: ResizeMode
    ) -> Value:
        """Return the result of RESIZE, with int48 sums as int32, and set ``weight``.

        Raises Unsupported if the sums may not fit into int32.
        """
        scale_y_n, _, scale_x_n, _ = scale
        # bilinear weights add up to this
        self.weight = scale_y_n * scale_x_n
        y = super().resize(x, scale, offset, border, mode)
        if y.dtype is not DType.INT48:
            return y
        self.refuse_unless(
            self.weight < 1 << 15, "sums of int16 that have more than 32 bits"
        )
        multiplier, shift = multipliers(self, Scale(1.0), 15)
        return self.rescale(y, multiplier, shift, before=0, after=0, dtype=DType.INT32)

    def mul(self, left: Any, right: Any, shift: int = 0) -> Value:
        """Raise Unsupported: only weighted sums multiply."""
        raise refused(_NO_FRACTIONS)

    def matmul(self, left: Value, right: Value) -> Value:
        """Raise Unsupported: only weighted sums multiply."""
        raise refused(_NO_FRACTIONS)


class FixedPointWeights(Tosa):
    """Builder for weighted sums of int32: fp32 factors become fixed point."""

    weighs_integers = True

    def __init__(self, t: Tosa) -> None:
        """Create a builder that appends to the operators of ``t``."""
        self.__dict__.update(t.__dict__)

    def mul(self, left: Any, right: Any, shift: int = 0) -> Value:
        """Return left * right, with the fp32 constant ``right`` as fixed point."""
        steps = np.rint(materialize(right) * 2.0**WEIGHT)
        weights = literal(steps.astype(np.int64), DType.INT32, np.int32)
        return super().mul(left, weights, shift=WEIGHT)


WEIGHT = 28
"""Fraction bits of a weight."""
ROOM = 4
"""Bits that a cubic interpolation over three axes may add to the largest element."""


def _by_weighted_sums(overload: Any, t: Tosa, self: Value, *settings: Any) -> Lazy:
    """[N,C,*S] -> [N,C,*S'], by weighted sums of int32"""
    x = operand(t, self, "its input")
    # elements get BITS - ROOM bits, so that the weighted sums have at most BITS
    step = x.scale.factor / 2.0 ** (BITS - ROOM - x.size.bit_length())
    float_rule = lowering_of(overload)
    y: Value = float_rule(FixedPointWeights(t), centred(t, x, step), *settings)
    y.range = -(1 << BITS), 1 << BITS
    return Scaled(y, Scale(step))


def _by_resize(overload: Any, t: Tosa, self: Value, *settings: Any) -> Lazy:
    """[N,C,H,W] -> [N,C,H',W'], by RESIZE or, if that fails, by weighted sums"""
    x = operand(t, self, "its input")
    start = len(t.operators)
    builder = Resizing(t)
    try:
        y: Value = lowering_of(overload)(builder, x.q, *settings)
    # discard operators that were emitted before the refusal
    except Unsupported:
        del t.operators[start:]
        return _by_weighted_sums(overload, t, x, *settings)
    # the rule made no RESIZE, but moved or repeated elements
    if y.dtype is x.q.dtype:
        return x.with_integers(y)
    # RESIZE has multiplied the zero point by the weight as well
    centred_y = t.sub(y, x.zero_point * builder.weight) if x.zero_point else y
    return Scaled(centred_y, x.scale.over(builder.weight))


for overload in (aten.upsample_bilinear2d.default, aten.upsample_bilinear2d.vec):
    lowers(overload, on=Lazy)(partial(_by_resize, overload))

for packet in (
    aten.upsample_linear1d,
    aten.upsample_trilinear3d,
    aten.upsample_bicubic2d,
    aten._upsample_bilinear2d_aa,
    aten._upsample_bicubic2d_aa,
):
    for overload in (packet.default, packet.vec):
        lowers(overload, on=Lazy)(partial(_by_weighted_sums, overload))
