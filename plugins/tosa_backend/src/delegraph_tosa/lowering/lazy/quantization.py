"""Quantization as numbers: scales, quantized types, and ratios in fixed point.

As in PyTorch, real = scale * (integer - zero point). Scales of channels are tensors of
the model. They are read when the file is written, and the multipliers of RESCALE are
computed from them then.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ...evaluate import materialize
from ...ir.graph import Array, Deferred, Value, literal
from ...ir.rescale_ratios import RescaleRatios, rescale_ratios
from ...ir.types import ARRAY_DTYPES, DType, Type
from ..builder import Tosa
from ..ranges.value_ranges import Range
from ..torch_values.tensor_types import refused

FP32 = np.finfo(np.float32)


class Scale(NamedTuple):
    """The scale of a quantization: ``factor`` times the product of ``tensors``.

    ``tensors`` are constants of floats, [C] (one number for each channel) or [1].
    """

    factor: float
    tensors: tuple[Value, ...] = ()

    def times(self, other: Scale) -> Scale:
        """Return the scale of a product of numbers in this scale and in ``other``."""
        return Scale(self.factor * other.factor, self.tensors + other.tensors)

    def over(self, number: float) -> Scale:
        """Return the same scale divided by ``number``."""
        return Scale(self.factor / number, self.tensors)

    @property
    def channels(self) -> int:
        """How many numbers the scale has: 1, or one for each channel."""
        return max([tensor.shape[0] for tensor in self.tensors], default=1)

    def elements(self) -> Array:
        """Return the numbers as float64 [1] or [C]; this reads the tensors."""
        product: Array = np.full(self.channels, self.factor)
        for tensor in self.tensors:
            product = product * materialize(tensor).astype(np.float64)
        return product


class Quantization(NamedTuple):
    """Arguments of a quantize operator: scale, zero point, limits and element type."""

    scale: float
    zero_point: int
    low: int
    high: int
    dtype: DType

    def nearest(self, number: float) -> int:
        """Round and limit a real number as ``quantize_per_tensor`` does."""
        if math.isinf(number):
            return self.low if number < 0 else self.high
        integer = round(number / self.scale) + self.zero_point
        return min(max(integer, self.low), self.high)

    @property
    def range(self) -> Range:
        """The smallest and the largest integer."""
        return self.low, self.high


def expect_scale(scale: float) -> None:
    """Raise Unsupported unless ``scale`` is positive, finite and normal in fp32.

    PyTorch computes in fp32.
    """
    if not (FP32.smallest_normal <= scale <= FP32.max):
        raise refused(f"a scale of {scale} is not a positive number of fp32")


def multipliers(t: Tosa, ratio: Scale, bits: int) -> tuple[Value, Value]:
    """Return the operands multiplier and shift, [C] or [1], of a RESCALE by ``ratio``.

    Equal ratios share them. ``bits`` is the size of the multipliers: 31, or 15 for a
    RESCALE of int48.
    """
    constants: tuple[Value, Value] = t.once(
        ("multipliers", ratio, bits), lambda: _make_multipliers(ratio, bits)
    )
    return constants


def _make_multipliers(ratio: Scale, bits: int) -> tuple[Value, Value]:
    """As ``multipliers``, but makes new constants.

    If the ratio has tensors, scales of channels, the constants are computed when the
    file is written and these are read.
    """
    dtype = DType.INT32 if bits == 31 else DType.INT16
    numpy_dtype = ARRAY_DTYPES[dtype]
    if not ratio.tensors:
        numbers = rescale_ratios(np.array([ratio.factor]), bits)
        multiplier = literal(numbers.multiplier, dtype, numpy_dtype)
        return multiplier, literal(numbers.shift, DType.INT8, np.int8)

    def load() -> RescaleRatios:
        return rescale_ratios(_positive(ratio.elements()), bits)

    def load_multiplier() -> Array:
        return load().multiplier.astype(numpy_dtype)

    def load_shift() -> Array:
        return load().shift.astype(np.int8)

    shape = (ratio.channels,)
    multiplier = Value(Type(shape, dtype), Deferred(load_multiplier))
    return multiplier, Value(Type(shape, DType.INT8), Deferred(load_shift))


def _positive(scales: Array) -> Array:
    """Return ``scales`` as they are.

    Raises Unsupported unless all are positive and finite.
    """
    wrong = scales[~((scales > 0) & np.isfinite(scales))]
    if wrong.size:
        raise refused(f"a scale of {wrong[0]} is not a positive number")
    return scales
