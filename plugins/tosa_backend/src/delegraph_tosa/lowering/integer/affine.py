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
_LEAST = 1e-30
"""A magnitude that avoids a scale of 0 if all constants are 0."""


def multiply_add(
    t: Tosa, x: Scaled, factor: Value, offset: Value | None = None
) -> Scaled:
    """Return x * factor + offset, for constants that broadcast with x and each other.

    Without ``offset``, returns x * factor. Raises Unsupported if ``factor`` or
    ``offset`` is no constant.
    """
    return affine(t, _with_all_bits(t, x), factor.shape, factor, offset)


def _largest_magnitude(constant: Value | None, default: float) -> float:
    """Return the largest absolute value in a constant; ``default`` for None."""
    if constant is None:
        return default
    largest: float = np.abs(real_elements(constant)).max()
    return largest


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
        largest = np.abs(real_elements(slopes)).max()
        return float(max(largest, 1.0)) / 2.0**GAIN

    one = _constant_in_steps((1,) * len(shape), None, gain)
    slope = _constant_in_steps(shape, slopes, gain)
    is_positive = t.greater(y.q, 0)
    factors = t.select(is_positive, one, slope)
    products = t.mul(y.q, factors, shift=GAIN)
    step = _deferred_number(gain)
    return Scaled(products, Scale(y.scale.factor * 2.0**GAIN, (step,)))


def _deferred_number(load: Callable[[], float]) -> Value:
    """fp32 [1]: the result of ``load``, which runs when the file is written."""

    def load_array() -> Array:
        return np.array([load()], np.float32)

    return Value(Type((1,), DType.FP32), Deferred(load_array))


def _with_all_bits(t: Tosa, x: Scaled) -> Scaled:
    """Return x as int32 without zero point, in the finest scale that RESCALE can make.

    The largest integer has BITS bits in it.
    """
    step = x.scale.factor / 2.0 ** (BITS - x.size.bit_length())
    return Scaled(centred(t, x, step), Scale(step))


def affine(
    t: Tosa, y: Scaled, shape: Shape, weight: Value | None, bias: Value | None
) -> Scaled:
    """Return y * weight + bias, for constants that broadcast with y in ``shape``.

    A weight of None is 1, a bias of None is 0. Raises Unsupported if ``weight`` or
    ``bias`` is no constant. The scale of the integer weight is so large that the weight
    fits, and the bias in the scale of the product. This scale is computed when the file
    is written (``gain``), because the constants are read only then.
    """
    if weight is None and bias is None:
        return y
    for value in (weight, bias):
        t.refuse_unless(
            value is None or value.constant is not None,
            "its weight or bias is computed at run time",
        )

    def gain() -> float:
        """Return the step of the integer weight, computed when the file is made."""
        most = _largest_magnitude(weight, default=1.0)
        # the bias has at most 29 bits in the scale of the product
        most_of_bias = _largest_magnitude(bias, default=0.0)
        most = max(most, most_of_bias / (y.scale.factor * 2.0**29), _LEAST)
        # rounded to fp32, as the file stores it
        return float(np.float32(most / 2.0**GAIN))

    step = _deferred_number(gain)
    factors = _constant_in_steps(shape, weight, gain)
    result = t.mul(y.q, factors, shift=GAIN)
    scale = y.scale.over(2.0**-GAIN)
    if bias is not None:
        offsets = _constant_in_steps(shape, bias, lambda: gain() * scale.factor)
        result = t.add(result, offsets)
    return Scaled(result, Scale(scale.factor, (step,)))


def _constant_in_steps(
    shape: Shape, value: Value | None, step: Callable[[], float]
) -> Value:
    """Return round(value / step()) as an int32 constant of ``shape``; None is 1.

    It is computed when the file is written.
    """

    def load() -> Array:
        """Return the elements in steps, read when the file is written."""
        elements = _elements_or_ones(value, math.prod(shape))
        steps = np.rint(elements / step())
        integers: Array = steps.astype(np.int32)
        return integers.reshape(shape)

    return deferred(Type(shape, DType.INT32), load, most=2**29)


def _elements_or_ones(constant: Value | None, count: int) -> Array:
    """Return the real numbers of a constant; ``count`` ones for None."""
    if constant is None:
        return np.ones(count)
    return real_elements(constant)


def convolved(t: Tosa, y: Scaled, weight: Value | None, bias: Value | None) -> Lazy:
    """As ``affine``, for y int16 [*S,C] and constants [C], by DEPTHWISE_CONV2D.

    The kernels have one element. Each channel has its own scale, in which its weight is
    127 or -127, or smaller if the bias needs a larger scale. On an NPU
    (docs/decisions/0028) this takes less time than a MUL and an ADD of int32.
    """
    count = y.shape[-1]
    step = y.scale.factor

    def steps() -> Array:
        """Return the steps of the integer weights, fp32 [C].

        In them, the bias has at most 29 bits.
        """
        factors = np.abs(_elements_or_ones(weight, count))
        offsets = np.zeros(count)
        if bias is not None:
            offsets = np.abs(real_elements(bias))
        # a weight far below all others becomes 0: ratios of a RESCALE have a limit
        least = max(factors.max(), offsets.max(), _LEAST) / 2.0**30
        of_bias = np.maximum(offsets / (step * 2.0**29), least)
        return np.maximum(factors / 127, of_bias).astype(np.float32)

    def kernels() -> Array:
        """Return the integer weights [1,1,C,1]."""
        factors = _elements_or_ones(weight, count)
        integers: Array = np.rint(factors / steps()).astype(np.int8)
        return integers.reshape(1, 1, count, 1)

    step_of_weights = Value(Type((count,), DType.FP32), Deferred(steps))
    scale = Scale(step, (step_of_weights,))
    kernel = deferred(Type((1, 1, count, 1), DType.INT8), kernels, most=127)
    in_sums = bias_in_steps(t, bias, scale, DType.INT48)
    builder = Accumulating(t, DType.INT48, left=0, right=0, bias=in_sums)
    positions = math.prod(y.shape[:-1])
    rows = t.reshape(y.q, (1, positions, 1, count))
    offset = builder.no_bias(rows) if in_sums is None else in_sums
    sums = builder.depthwise_conv2d(
        rows, kernel, offset, pad=(0, 0, 0, 0), stride=(1, 1), dilation=(1, 1)
    )
    weighed = Scaled(sums, scale.times(builder.unit), axis=3)
    return Moved(weighed, lambda t, x: t.reshape(x, y.shape), y.shape)
