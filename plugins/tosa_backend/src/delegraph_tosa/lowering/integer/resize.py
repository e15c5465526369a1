"""Bilinear interpolation of quantized images: RESIZE gives sums of 32 bits, which are weighted with whole numbers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ...ir.graph import Value
from ...ir.types import DType, ResizeMode
from ..builder import Shape, Tosa
from ..lazy import Lazy, Scaled, operand
from ..quantization import Scale, multipliers
from ..registry import RULES, lowers_quantized

aten = torch.ops.aten


class Resizing(Tosa):
    """The builder ``t``, for one RESIZE of integers; ``weight`` is the sum of its weights."""

    weight = 1

    def __init__(self, t: Tosa) -> None:
        self.__dict__.update(t.__dict__)

    def resize(self, x: Value, scale: Shape, offset: Shape, border: Shape, mode: ResizeMode) -> Value:
        self.weight = scale[0] * scale[2]
        y = super().resize(x, scale, offset, border, mode)
        if y.dtype is not DType.INT48:
            return y
        self.require(self.weight < 1 << 15, "sums of int16 that have more than 32 bits")
        return self.rescale(y, *multipliers(self, Scale(1.0), 15), 0, 0, DType.INT32)

    def mul(self, left: Any, right: Any, shift: int = 0) -> Value:
        self.require(False, "its sizes are no fractions that RESIZE can express")
        return super().mul(left, right, shift)

    def matmul(self, left: Value, right: Value) -> Value:
        self.require(False, "its sizes are no fractions that RESIZE can express")
        return super().matmul(left, right)


def _resized(overload: Any, t: Tosa, self: Value, *settings: Any) -> Lazy:
    """[N,C,H,W] -> [N,C,H',W']"""
    x = operand(t, self, "its input")
    inside = Resizing(t)
    y: Value = RULES[overload].function(inside, x.q, *settings)
    if y.dtype is x.q.dtype:
        return Scaled(y, x.scale, x.zero_point)
    centred = t.sub(y, x.zero_point * inside.weight) if x.zero_point else y
    return Scaled(centred, x.scale.over(inside.weight))


for overload in (aten.upsample_bilinear2d.default, aten.upsample_bilinear2d.vec):
    lowers_quantized(overload)(partial(_resized, overload))
