"""Products with, and sums of, constants of the model that have a number for each channel."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...ir.graph import Array, Deferred, Value
from ...ir.types import DType, Type
from ..builder import Shape, Tosa
from ..lazy.quantization import Scale
from ..lazy.values import BITS, Scaled
from .products import deferred, real_elements
from .sums import centred

GAIN = 28
"""Bits of a factor of a channel."""


def multiplied(t: Tosa, x: Scaled, by: Value, bias: Value | None = None) -> Scaled:
    """x * by + bias, which are constants that broadcast in one shape"""
    return affine(t, _finer(t, x), by.shape, by, bias)


def sloped(t: Tosa, x: Scaled, shape: Shape, slopes: Value) -> Scaled:
    """x above 0, and x * slopes below, which are constants that broadcast in ``shape``"""
    y = _finer(t, x)

    def gain() -> float:
        return float(max(np.abs(real_elements(slopes)).max(), 1.0)) / 2.0**GAIN

    one, below = (_in_steps(s, v, gain) for s, v in (((1,) * len(shape), None), (shape, slopes)))
    factors = t.select(t.greater(y.q, 0), one, below)
    step = Value(Type((1,), DType.FP32), Deferred(lambda: np.array([gain()], np.float32)))
    return Scaled(t.mul(y.q, factors, shift=GAIN), Scale(y.scale.factor * 2.0**GAIN, (step,)))


def _finer(t: Tosa, x: Scaled) -> Scaled:
    """The same with as many bits as may be multiplied."""
    step = x.scale.factor / 2.0 ** (BITS - x.size.bit_length())
    return Scaled(centred(t, x, step), Scale(step))


def affine(t: Tosa, y: Scaled, shape: Shape, weight: Value | None, bias: Value | None) -> Scaled:
    """y * weight + bias, which are constants that broadcast in ``shape``.

    One step of the weight is made so large that neither it nor the bias, in steps of the product, overflows.
    """
    if weight is None and bias is None:
        return y
    for value in (weight, bias):
        t.require(value is None or value.constant is not None, "its weight or bias is computed at run time")

    def gain() -> Array:
        factors = np.ones(1) if weight is None else np.abs(real_elements(weight))
        offsets = np.zeros(1) if bias is None else np.abs(real_elements(bias))
        largest = max(factors.max(), offsets.max() / (y.scale.factor * 2.0**29), 1e-30)
        return np.array([largest / 2.0**GAIN], np.float32)

    step = Value(Type((1,), DType.FP32), Deferred(gain))
    factors = _in_steps(shape, weight, lambda: gain().item())
    result = t.mul(y.q, factors, shift=GAIN)
    scale = y.scale.over(2.0**-GAIN)
    if bias is not None:
        result = t.add(result, _in_steps(shape, bias, lambda: gain().item() * scale.factor))
    return Scaled(result, Scale(scale.factor, (step,)))


def _in_steps(shape: Shape, value: Value | None, step: Callable[[], float]) -> Value:
    """A constant, or 1, in integers."""

    def load() -> Array:
        elements = np.ones(math.prod(shape)) if value is None else real_elements(value)
        steps: Array = np.rint(elements / step()).astype(np.int32).reshape(shape)
        return steps

    return deferred(Type(shape, DType.INT32), load, 2**29)
