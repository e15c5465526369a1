"""Normalization in integers: sums of squares in 32 bits, and one 1 / sqrt a row by Newton's iterations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from ...ir.graph import Array, Deferred, Value
from ...ir.types import DType, Type
from ..aten.reduce import reduced
from ..builder import Shape, Tosa
from ..lazy import Lazy, Scaled, operand
from ..quantization import Scale
from ..ranges import range_of
from ..registry import lowers_quantized
from .arithmetic import size
from .fixed_point import FRACTION, inverse_root
from .products import deferred, real_elements

aten = torch.ops.aten
GAIN = 28
"""Bits of a factor of a channel."""


def normalized(t: Tosa, x: Scaled, axes: Sequence[int], eps: float, centre: bool) -> Scaled:
    """(x - mean) / sqrt(variance + eps) over ``axes``, or x / sqrt(mean square + eps), int32 of about 30 bits.

    With n elements, c = n * x - sum (or n * x) is exact, and sum(c**2) = n**3 * variance. Of the squares so many low
    bits are rounded off that their sum has 31. Where eps is the larger part, ``below`` bits more, twice, are rounded
    off of the squares for it to fit; the result is smaller by so many bits, which its scale takes back.
    """
    n = math.prod([x.shape[a] for a in axes])
    low, high = range_of(x.q)
    bits = math.ceil(math.log2(n * (high - low if centre else size(x))))
    t.require(bits < 31, f"a norm over {n} elements has more than 32 bits")
    q = t.sub(t.cast(x.q, DType.INT32), 0 if centre else x.zero_point)
    c = t.mul(q, n)
    if centre:
        c = t.sub(c, reduced(t, q, t.reduce_sum, axes, True))
    lost = 2 * max(0, (2 * bits + math.ceil(math.log2(n)) - 29) // 2)
    offset = eps * n**3 / x.scale.factor**2 / 2.0**lost
    below = max(0, math.ceil((math.log2(max(offset, 1)) - 29) / 2))
    squares = t.mul(c, c, shift=min(lost + 2 * below, 62))
    total = t.add(reduced(t, squares, t.reduce_sum, axes, True), round(offset / 4.0**below))
    inverse = inverse_root(t, t.maximum(total, 1))
    more = 14 - lost // 2
    if more < 0:
        c, more = t.right_shift(c, -more), 0
    y = t.mul(t.left_shift(c, t.add(inverse.shift, more)), inverse.mantissa, shift=FRACTION)
    return Scaled(y, Scale(math.sqrt(n) * 2.0 ** (-29.5 - below)))


def _affine(t: Tosa, y: Scaled, shape: Shape, weight: Value | None, bias: Value | None) -> Scaled:
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


def _last(x: Value, normalized_shape: Sequence[int]) -> tuple[list[int], Shape]:
    """The axes of that shape, and it with axes of size 1 before it."""
    count = len(normalized_shape)
    return list(range(x.rank - count, x.rank)), (1,) * (x.rank - count) + tuple(normalized_shape)


@lowers_quantized(aten.layer_norm.default)
def layer_norm(
    t: Tosa,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None,
    bias: Value | None,
    eps: float,
    cudnn_enable: bool,
) -> Lazy:
    """input [*S,*N], weight [*N], bias [*N] -> [*S,*N]"""
    axes, shape = _last(input, normalized_shape)
    return _affine(t, normalized(t, operand(t, input, "its input"), axes, eps, True), shape, weight, bias)


@lowers_quantized(aten.rms_norm.default)
def rms_norm(t: Tosa, input: Value, normalized_shape: Sequence[int], weight: Value | None, eps: float | None) -> Lazy:
    """input [*S,*N], weight [*N] -> [*S,*N]"""
    axes, shape = _last(input, normalized_shape)
    epsilon = torch.finfo(torch.float32).eps if eps is None else eps
    return _affine(t, normalized(t, operand(t, input, "its input"), axes, epsilon, False), shape, weight, None)


@lowers_quantized(aten.group_norm.default)
def group_norm(
    t: Tosa,
    input: Value,
    num_groups: int,
    weight: Value | None,
    bias: Value | None,
    eps: float,
    cudnn_enabled: bool,
) -> Lazy:
    """input [N,C,*S], weight [C], bias [C] -> [N,C,*S]; each of the groups of channels for itself"""
    x = operand(t, input, "its input")
    batch, channels, *size = x.shape
    parts = t.reshape(x.q, (batch, num_groups, math.prod(x.shape[1:]) // num_groups))
    groups = Scaled(parts, x.scale, x.zero_point)
    y = normalized(t, groups, [2], eps, True)
    shape = (1, channels, *(1,) * len(size))
    return _affine(t, Scaled(t.reshape(y.q, x.shape), y.scale), shape, weight, bias)
