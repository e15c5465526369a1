"""Normalization in integers: sums of squares in 32 bits, and one 1 / sqrt for each row by Newton's iterations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...ir.graph import Value
from ...ir.types import DType
from ..aten.norm import channel_shape, factor_and_offset, last_axes
from ..aten.reduce import reduced
from ..builder import Tosa
from ..lazy.quantization import Scale
from ..lazy.values import Lazy, Scaled, operand, real
from ..ranges.ranges import range_of
from ..registry import lowers
from .affine import affine, multiplied
from .fixed_point import FRACTION, inverse_root

aten = torch.ops.aten


def normalized(t: Tosa, x: Scaled, axes: Sequence[int], eps: float, centre: bool) -> Scaled:
    """(x - mean) / sqrt(variance + eps) over ``axes``, or x / sqrt(mean square + eps) without ``centre``; int32.

    With n elements, c = n * x - sum (without ``centre``, n * x) is exact, and sum(c**2) is n**3 * variance (or mean
    square). So the result is sqrt(n) * c / sqrt(sum(c**2) + n**3 * eps). ``lost`` low bits of the squares are rounded
    off, so that their sum has 31 bits. If n**3 * eps needs more bits than that, 2 * ``extra`` more are rounded off;
    this makes the inverse root 2**extra times as large, which the scale of the result undoes. Raises Unsupported if c
    has more than 31 bits.
    """
    n = math.prod([x.shape[a] for a in axes])
    low, high = range_of(x.q)
    bits = math.ceil(math.log2(n * (high - low if centre else x.size)))
    t.require(bits < 31, f"a norm over {n} elements has more than 32 bits")
    # subtracting the mean removes the zero point too
    q = t.sub(t.cast(x.q, DType.INT32), 0 if centre else x.zero_point)
    c = t.mul(q, n)
    if centre:
        c = t.sub(c, reduced(t, q, t.reduce_sum, axes, True))
    # an even number, so that the root loses a whole number of bits
    lost = 2 * max(0, (2 * bits + math.ceil(math.log2(n)) - 29) // 2)
    # n**3 * eps in steps of the squares that have lost their low bits
    offset = eps * n**3 / x.scale.factor**2 / 2.0**lost
    extra = max(0, math.ceil((math.log2(max(offset, 1)) - 29) / 2))
    squares = t.mul(c, c, shift=min(lost + 2 * extra, 62))
    total = t.add(reduced(t, squares, t.reduce_sum, axes, True), round(offset / 4.0**extra))
    inverse = inverse_root(t, t.maximum(total, 1))
    # c is shifted left as far as int32 allows: the root of a sum that lost ``lost`` bits has lost // 2 bits less
    left = 14 - lost // 2
    if left < 0:
        c, left = t.right_shift(c, -left), 0
    y = t.mul(t.left_shift(c, t.add(inverse.shift, left)), inverse.mantissa, shift=FRACTION)
    # -29.5: the powers of two in ``inverse_root`` and in the shifts of c and of the product
    return Scaled(y, Scale(math.sqrt(n) * 2.0 ** (-29.5 - extra)))


@lowers(aten.layer_norm.default, on=Lazy)
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
    axes, shape = last_axes(input, normalized_shape)
    return affine(t, normalized(t, operand(t, input, "its input"), axes, eps, True), shape, weight, bias)


@lowers(aten.rms_norm.default, on=Lazy)
def rms_norm(t: Tosa, input: Value, normalized_shape: Sequence[int], weight: Value | None, eps: float | None) -> Lazy:
    """input [*S,*N], weight [*N] -> [*S,*N]"""
    axes, shape = last_axes(input, normalized_shape)
    epsilon = torch.finfo(torch.float32).eps if eps is None else eps
    return affine(t, normalized(t, operand(t, input, "its input"), axes, epsilon, False), shape, weight, None)


@lowers(aten.group_norm.default, on=Lazy)
def group_norm(
    t: Tosa,
    input: Value,
    num_groups: int,
    weight: Value | None,
    bias: Value | None,
    eps: float,
    cudnn_enabled: bool,
) -> Lazy:
    """input [N,C,*S], weight [C], bias [C] -> [N,C,*S]; statistics over each group of channels of each sample"""
    x = operand(t, input, "its input")
    parts = t.reshape(x.q, (x.shape[0], num_groups, math.prod(x.shape[1:]) // num_groups))
    groups = Scaled(parts, x.scale, x.zero_point)
    y = normalized(t, groups, [2], eps, True)
    return affine(t, Scaled(t.reshape(y.q, x.shape), y.scale), channel_shape(input), weight, bias)


@lowers(aten.instance_norm.default, on=Lazy)
def instance_norm(
    t: Tosa,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Lazy:
    """input [N,C,*S], weight [C], bias [C] -> [N,C,*S]; statistics over each channel of each sample"""
    if not use_input_stats:
        return batch_norm(t, input, weight, bias, running_mean, running_var, False, momentum, eps, cudnn_enabled)
    t.require(running_mean is None, "instance normalization that keeps running statistics is not lowered")
    y = normalized(t, operand(t, input, "its input"), range(2, input.rank), eps, True)
    return affine(t, y, channel_shape(input), weight, bias)


@lowers(aten.batch_norm.default, on=Lazy)
def batch_norm(
    t: Tosa,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Lazy:
    """input [N,C,*S], the others [C] -> [N,C,*S]; x * k + s from constant running statistics"""
    t.require(not training and running_mean is not None and running_var is not None, "it has the statistics of a batch")
    assert running_mean is not None and running_var is not None
    for value in (weight, bias, running_mean, running_var):
        t.require(value is None or value.constant is not None, "its weight or statistics are computed at run time")
    weight, bias = (None if v is None else real(t, v) for v in (weight, bias))
    k, s = factor_and_offset(t, weight, bias, real(t, running_mean), real(t, running_var), eps)
    shape = channel_shape(input)
    return multiplied(t, operand(t, input, "its input"), t.reshape(k, shape), t.reshape(s, shape))
