"""Multiplies and adds constants with one number for each channel."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...ir.graph import Array, Deferred, Value
from ...ir.types import DType, Type
from ..builder import Shape, Tosa
from ..lazy.lazy_values import BITS, Lazy, Moved, Scaled
from ..lazy.quantization import Scale
from .products import Accumulating, bias_in_steps, deferred, real_elements
from .sums import centred

GAIN = 28
"""Fraction bits of a constant factor."""


def multiplied(t: Tosa, x: Scaled, by: Value, bias: Value | None = None) -> Scaled:
    """Return x * by + bias, for constants that broadcast with x and each other.

    No bias is None. Raises Unsupported if ``by`` or ``bias`` is no constant.
    """
    return affine(t, _with_all_bits(t, x), by.shape, by, bias)


def sloped(t: Tosa, x: Scaled, shape: Shape, slopes: Value) -> Scaled:
    """Return x where it is positive and x * slopes elsewhere.

    The constant slopes broadcast with x in ``shape``.
    """
    y = _with_all_bits(t, x)

    def gain() -> float:
        """Return the step of the integers for the factors 1 and slope.

        The larger factor gets GAIN bits. It is computed when the file is written and
        the slopes are read.
        """
        return float(max(np.abs(real_elements(slopes)).max(), 1.0)) / 2.0**GAIN

    one, slope = (
        _constant_in_steps(s, v, gain)
        for s, v in (((1,) * len(shape), None), (shape, slopes))
    )
    factors = t.select(t.greater(y.q, 0), one, slope)
    step = Value(
        Type((1,), DType.FP32), Deferred(lambda: np.array([gain()], np.float32))
    )
    return Scaled(
        t.mul(y.q, factors, shift=GAIN), Scale(y.scale.factor * 2.0**GAIN, (step,))
    )


def _with_all_bits(t: Tosa, x: Scaled) -> Scaled:
    """Return x as int32 without zero point, scaled so that the largest has BITS bits.

    A RESCALE takes no more.
    """
    step = x.scale.factor / 2.0 ** (BITS - x.size.bit_length())
    return Scaled(centred(t, x, step), Scale(step))


def affine(
    t: Tosa, y: Scaled, shape: Shape, weight: Value | None, bias: Value | None
) -> Scaled:
    """Return y * weight + bias, for constants that broadcast with y in ``shape``.

    A weight of None is 1, a bias of None is 0. The scale of the integer weight is large
    enough that neither the weight, nor the bias in the scale of the product, overflows.
    It is computed when the file is written (``gain``), because the constants are read
    only then. Raises Unsupported if ``weight`` or ``bias`` is no constant.
    """
    if weight is None and bias is None:
        return y
    for value in (weight, bias):
        t.require(
            value is None or value.constant is not None,
            "its weight or bias is computed at run time",
        )

    def gain() -> Array:
        """fp32 [1]: the step of the integer weight, computed when the file is made."""
        factors = np.ones(1) if weight is None else np.abs(real_elements(weight))
        offsets = np.zeros(1) if bias is None else np.abs(real_elements(bias))
        # the bias has at most 29 bits in the scale of the product; 1e-30 avoids a scale
        # of 0 if all constants are 0
        largest = max(factors.max(), offsets.max() / (y.scale.factor * 2.0**29), 1e-30)
        return np.array([largest / 2.0**GAIN], np.float32)

    step = Value(Type((1,), DType.FP32), Deferred(gain))
    factors = _constant_in_steps(shape, weight, lambda: gain().item())
    result = t.mul(y.q, factors, shift=GAIN)
    scale = y.scale.over(2.0**-GAIN)
    if bias is not None:
        result = t.add(
            result,
            _constant_in_steps(shape, bias, lambda: gain().item() * scale.factor),
        )
    return Scaled(result, Scale(scale.factor, (step,)))


def _constant_in_steps(
    shape: Shape, value: Value | None, step: Callable[[], float]
) -> Value:
    """round(value / step()) as an int32 constant of ``shape``; None is 1.

    Computed when the file is written.
    """

    def load() -> Array:
        """Return the elements in steps, read when the file is written."""
        elements = np.ones(math.prod(shape)) if value is None else real_elements(value)
        steps: Array = np.rint(elements / step()).astype(np.int32).reshape(shape)
        return steps

    return deferred(Type(shape, DType.INT32), load, 2**29)


def convolved(t: Tosa, y: Scaled, weight: Value | None, bias: Value | None) -> Lazy:
    """As ``affine``, for y int16 [*S,C] and constants [C], by DEPTHWISE_CONV2D.

    The kernels have one element. Each channel has a weight of 127 or -127, and a scale
    of its own. On an NPU (docs/decisions/0028) this takes less time than a MUL and an
    ADD of int32.
    """
    count = y.shape[-1]
    step = y.scale.factor

    def steps() -> Array:
        """fp32 [C]: the steps of the integer weights. No bias has more than 29 bits."""
        factors = np.ones(count) if weight is None else np.abs(real_elements(weight))
        offsets = np.zeros(count) if bias is None else np.abs(real_elements(bias))
        # a weight far below all others becomes 0: ratios of a RESCALE have a limit
        least = max(factors.max(), offsets.max(), 1e-30) / 2.0**30
        return np.maximum(
            factors / 127, np.maximum(offsets / (step * 2.0**29), least)
        ).astype(np.float32)

    def kernels() -> Array:
        """Return the integer weights [1,1,C,1]."""
        factors = np.ones(count) if weight is None else real_elements(weight)
        integers: Array = (
            np.rint(factors / steps()).astype(np.int8).reshape(1, 1, count, 1)
        )
        return integers

    scale = Scale(step, (Value(Type((count,), DType.FP32), Deferred(steps)),))
    kernel = deferred(Type((1, 1, count, 1), DType.INT8), kernels, 127)
    in_sums = bias_in_steps(t, bias, scale, DType.INT48)
    builder = Accumulating(t, DType.INT48, 0, 0, bias=in_sums)
    rows = t.reshape(y.q, (1, math.prod(y.shape[:-1]), 1, count))
    offset = builder.no_bias(rows) if in_sums is None else in_sums
    sums = builder.depthwise_conv2d(rows, kernel, offset, (0, 0, 0, 0), (1, 1), (1, 1))
    return Moved(
        Scaled(sums, scale.times(builder.unit), axis=3),
        lambda t, x: t.reshape(x, y.shape),
        y.shape,
    )
