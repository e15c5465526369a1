"""Quantization as numbers: scales, the quantized types that a program asks for, and the fixed-point form of a ratio.

real = scale * (integer - zero point), as in PyTorch. Scales of channels are tensors of the model, which stay where they
are until the file is written; so do the multipliers that follow from them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ...evaluate import materialize
from ...ir.graph import Array, Deferred, Value, literal
from ...ir.types import DType, Type
from ..builder import Tosa
from ..ranges.ranges import Range
from ..torch_values.types import refused

FP32 = np.finfo(np.float32)


class Scale(NamedTuple):
    """What one step of an integer is in real units: a number, times one number for each index of an axis.

    ``tensors`` are constants of floats, [C] or [1].
    """

    factor: float
    tensors: tuple[Value, ...] = ()

    def times(self, other: Scale) -> Scale:
        return Scale(self.factor * other.factor, self.tensors + other.tensors)

    def over(self, number: float) -> Scale:
        return Scale(self.factor / number, self.tensors)

    @property
    def channels(self) -> int:
        """How many numbers it is."""
        return max([tensor.shape[0] for tensor in self.tensors], default=1)

    def elements(self) -> Array:
        """The numbers, float64 [1] or [C]; reads the tensors."""
        product: Array = np.full(self.channels, self.factor)
        for tensor in self.tensors:
            product = product * materialize(tensor).astype(np.float64)
        return product


class Quantization(NamedTuple):
    """What a program quantizes a tensor to: integers from ``low`` to ``high`` of an element type."""

    scale: float
    zero_point: int
    low: int
    high: int
    dtype: DType

    def nearest(self, number: float) -> int:
        """The integer of a real number, as ``quantize_per_tensor`` rounds and limits it."""
        if math.isinf(number):
            return self.low if number < 0 else self.high
        return min(max(round(number / self.scale) + self.zero_point, self.low), self.high)

    @property
    def range(self) -> Range:
        return self.low, self.high


def expect_scale(scale: float) -> None:
    """Unsupported unless ``scale`` is a positive finite number of fp32, which PyTorch computes with."""
    if not (FP32.smallest_normal <= scale <= FP32.max):
        raise refused(f"a scale of {scale} is not a positive number of fp32")


def fixed_point(ratios: Array, bits: int) -> tuple[Array, Array]:
    """(multiplier, shift) with ratio = multiplier / 2**shift, for RESCALE (specification: RESCALE, apply_scale).

    A multiplier has ``bits`` bits, 31 or 15, as many of them significant as ``2 <= shift <= 62`` lets it have. A ratio
    beyond that saturates whatever is not 0.
    """
    fraction, exponent = np.frexp(ratios)
    multiplier = np.rint(np.ldexp(fraction, bits)).astype(np.int64)
    carried = multiplier >> bits  # a fraction that rounds to 1
    multiplier, exponent = multiplier >> carried, exponent + carried
    shift = bits - exponent
    lost = np.clip(shift - 62, 0, 40)
    multiplier = np.where(lost > 0, (multiplier + ((1 << lost) >> 1)) >> lost, multiplier)
    multiplier = np.where(shift < 2, (1 << bits) - 1, multiplier)
    return multiplier, np.clip(shift, 2, 62)


def multipliers(t: Tosa, ratio: Scale, bits: int) -> tuple[Value, Value]:
    """The operands multiplier [C or 1] and shift [C or 1] of a RESCALE by ``ratio``."""
    made: tuple[Value, Value] = t.once(("multipliers", ratio, bits), lambda: _multipliers(ratio, bits))
    return made


def _multipliers(ratio: Scale, bits: int) -> tuple[Value, Value]:
    wide = DType.INT32 if bits == 31 else DType.INT16
    if not ratio.tensors:
        multiplier, shift = fixed_point(np.array([ratio.factor]), bits)
        return literal(multiplier, wide, wide.name.lower()), literal(shift, DType.INT8, np.int8)

    def loaded(position: int, dtype: str) -> Any:
        return lambda: fixed_point(_positive(ratio.elements()), bits)[position].astype(dtype)

    shape = (ratio.channels,)
    multiplier_of = Deferred(loaded(0, wide.name.lower()))
    return Value(Type(shape, wide), multiplier_of), Value(Type(shape, DType.INT8), Deferred(loaded(1, "int8")))


def _positive(scales: Array) -> Array:
    """Scales that were read; Unsupported unless all are positive numbers."""
    wrong = scales[~((scales > 0) & np.isfinite(scales))]
    if wrong.size:
        raise refused(f"a scale of {wrong[0]} is not a positive number")
    return scales
