"""Normalizes in integers: sums squares in 32 bits, with one 1 / sqrt for each row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ...ir.dynamic_sizes import is_dynamic
from ...ir.graph import Value
from ...ir.types import DType
from ..aten.norm import channel_shape, factor_and_offset, last_axes
from ..aten.reduce import reduced
from ..builder import Tosa
from ..lazy.lazy_values import Lazy, Scaled, operand, real, rescale
from ..lazy.quantization import Quantization, Scale
from ..ranges.value_ranges import range_of
from ..registry import lowers
from .affine import affine, convolved, multiply_add
from .fixed_point import FRACTION, MantissaAndShift, inverse_root

aten = torch.ops.aten


DEVICES = frozenset({"u55"})
"""Devices on which operators of int16 take less time than the same ones of int32."""
COARSE = 15
"""The low bits of a factor of 30 bits that an int16 result drops."""


class Normalized(NamedTuple):
    """The normalized value (c << (shift + left)) * mantissa * scale.

    c are integers [*S]. ``inverse`` has the shift and the mantissa of each row.
    """

    c: Value
    inverse: MantissaAndShift
    left: int
    scale: Scale
    is_bounded: bool
    """Whether the integers of ``computed`` have at most 30 bits."""

    def computed(self, t: Tosa) -> Scaled:
        """Return the result as int32."""
        shift = t.add(self.inverse.shift, self.left)
        shifted = t.left_shift(self.c, shift)
        y = t.mul(shifted, self.inverse.mantissa, shift=FRACTION)
        y.range = (-1 << 30, 1 << 30) if self.is_bounded else None
        return Scaled(y, self.scale)

    def coarse(self, t: Tosa) -> Scaled:
        """Return the result as int16, if it ``is_bounded``.

        The factor of each row has 15 bits, so that it can be shifted.
        """
        mantissa = t.right_shift(self.inverse.mantissa, COARSE)
        # the shift is 15 at most
        factor = t.left_shift(mantissa, self.inverse.shift)
        y = t.mul(self.c, factor, shift=FRACTION - self.left)
        y.range = (-1 << 15, 1 << 15)
        scale = self.scale.over(2.0**-COARSE)
        short = rescale(t, Scaled(y, scale), scale.factor, 0, DType.INT16)
        return Scaled(short, scale)


def normalized(
    t: Tosa, x: Scaled, axes: Sequence[int], eps: float, centre: bool
) -> Normalized:
    """Return (x - mean) / sqrt(variance + eps) over ``axes``.

    Without ``centre``, returns x / sqrt(mean square + eps). With n elements:

    - c = n * x - sum is exact (without ``centre``, c = n * x)
    - sum(c**2) = n**3 * variance (without ``centre``, n**3 * mean square)
    - the result is sqrt(n) * c / sqrt(sum(c**2) + n**3 * eps)

    Raises Unsupported if c has more than 31 bits.
    """
    n = math.prod([x.shape[a] for a in axes])
    low, high = range_of(x.q)
    # the largest distance of an element from the mean, or from 0
    distance = high - low if centre else x.size
    bits = math.ceil(math.log2(n * distance))
    t.refuse_unless(bits < 31, f"a norm over {n} elements has more than 32 bits")
    q = t.cast(x.q, DType.INT32)
    if not centre:
        # subtracting the mean would remove the zero point too
        q = t.sub(q, x.zero_point)
    c = t.mul(q, n)
    if centre:
        c = t.sub(c, reduced(t, q, t.reduce_sum, axes, keepdim=True))
    # the largest sum of squares: half of the elements are at each end of the range
    most_of_one = (high - low) / 2 if centre else x.size
    most = n**3 * most_of_one**2
    # the low bits that squares lose, so that their sum has 31 bits: an even number, so
    # that the root loses a whole number of bits
    lost = 2 * _half_of_bits_above(most, 29.9)
    # n**3 * eps in steps of the squares. If it has more bits than their sum, squares
    # lose 2 * extra bits more. Then the inverse root is 2**extra times as large, which
    # the scale of the result undoes
    offset = eps * n**3 / x.scale.factor**2 / 2.0**lost
    extra = _half_of_bits_above(offset, 29)
    squares = t.mul(c, c, shift=min(lost + 2 * extra, 62))
    total = reduced(t, squares, t.reduce_sum, axes, keepdim=True)
    total = t.add(total, round(offset / 4.0**extra))
    inverse = inverse_root(t, t.maximum(total, 1))
    # c is shifted left as far as int32 allows: the root of a sum that lost ``lost``
    # bits has lost // 2 bits less
    left = 14 - lost // 2
    if left < 0:
        c = t.right_shift(c, -left)
        left = 0
    # -29.5: the powers of two in ``inverse_root`` and in the shifts of c and of the
    # product
    scale = Scale(math.sqrt(n) * 2.0 ** (-29.5 - extra))
    # |c| is at most 1.3 times the root of the rounded sum of squares, so the integers
    # of the result are below 2**30
    return Normalized(c, inverse, left, scale, is_bounded=not extra)


def _half_of_bits_above(number: float, bits: float) -> int:
    """Return half of the bits that ``number`` has above ``bits``, rounded up."""
    return max(0, math.ceil((math.log2(max(number, 1)) - bits) / 2))


class Weighed(Lazy):
    """A normalized value times ``weight`` [C] plus ``bias`` [C], on an NPU."""

    __slots__ = ("bias", "of", "weight")

    def __init__(
        self, of: Normalized, weight: Value | None, bias: Value | None
    ) -> None:
        """Create the value; a ``weight`` of None is 1, a ``bias`` of None is 0."""
        super().__init__(of.c.shape)
        self.of = of
        self.weight = weight
        self.bias = bias

    def integer(self, t: Tosa, to: Quantization) -> Value:
        """Return the sum in the quantization ``to``.

        int8 is computed by a convolution of int16, other types by operators of int32.
        """
        if to.dtype is DType.INT8:
            short = self.of.coarse(t)
            return convolved(t, short, self.weight, self.bias).integer(t, to)
        return self._computed(t).integer(t, to)

    def real(self, t: Tosa) -> Value:
        """Return the sum of the real numbers, computed in floats."""
        return self._computed(t).real(t)

    def _computed(self, t: Tosa) -> Scaled:
        """Return the sum by operators of int32."""
        y = self.of.computed(t)
        shape = (1,) * (self.rank - 1) + self.shape[-1:]
        return affine(t, y, shape, self.weight, self.bias)


def _weighed(
    t: Tosa,
    y: Normalized,
    sizes: Sequence[int],
    weight: Value | None,
    bias: Value | None,
) -> Lazy:
    """Return y * weight + bias along the last axes, which have these ``sizes``."""
    if _can_be_short(t, y, sizes) and _are_constants(weight, bias):
        return Weighed(y, weight, bias)
    shape = (1,) * (y.c.rank - len(sizes)) + tuple(sizes)
    return affine(t, y.computed(t), shape, weight, bias)


def _can_be_short(t: Tosa, y: Normalized, sizes: Sequence[int]) -> bool:
    """Return whether y can be int16 rows of channels, and the target is in DEVICES."""
    if not DEVICES & t.spec.devices or "int16" not in t.spec.extensions:
        return False
    if any(map(is_dynamic, y.c.shape)):
        return False
    return len(sizes) == 1 and y.c.rank > 1 and y.is_bounded


def _are_constants(weight: Value | None, bias: Value | None) -> bool:
    """Return whether there is a weight or a bias, and neither is computed."""
    given = [value for value in (weight, bias) if value is not None]
    return bool(given) and all(value.constant is not None for value in given)


@lowers(aten.layer_norm.default, on=Lazy)
def layer_norm(
    t: Tosa,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> Lazy:
    """input [*S,*N], weight [*N], bias [*N] -> [*S,*N]"""
    axes = last_axes(input, normalized_shape)
    x = operand(t, input, "its input")
    y = normalized(t, x, axes, eps, centre=True)
    return _weighed(t, y, normalized_shape, weight, bias)


@lowers(aten.rms_norm.default, on=Lazy)
def rms_norm(
    t: Tosa,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None,
    eps: float | None,
) -> Lazy:
    """input [*S,*N], weight [*N] -> [*S,*N]"""
    axes = last_axes(input, normalized_shape)
    epsilon = torch.finfo(torch.float32).eps if eps is None else eps
    x = operand(t, input, "its input")
    y = normalized(t, x, axes, epsilon, centre=False)
    return _weighed(t, y, normalized_shape, weight, None)


@lowers(aten.group_norm.default, on=Lazy)
def group_norm(
    t: Tosa,
    input: Value,
    num_groups: int,
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> Lazy:
    """input [N,C,*S], weight [C], bias [C] -> [N,C,*S]; statistics over each group of
    channels of each sample
    """
    x = operand(t, input, "its input")
    group = math.prod(x.shape[1:]) // num_groups
    parts = t.reshape(x.q, (x.shape[0], num_groups, group))
    groups = x.with_integers(parts)
    y = normalized(t, groups, [2], eps, centre=True).computed(t)
    images = Scaled(t.reshape(y.q, x.shape), y.scale)
    return affine(t, images, channel_shape(input), weight, bias)


@lowers(aten.instance_norm.default, on=Lazy)
def instance_norm(
    t: Tosa,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    use_input_stats: bool,
    eps: float,
) -> Lazy:
    """input [N,C,*S], weight [C], bias [C] -> [N,C,*S]; statistics over each channel of
    each sample
    """
    if not use_input_stats:
        return batch_norm(
            t, input, weight, bias, running_mean, running_var, training=False, eps=eps
        )
    t.refuse_unless(
        running_mean is None,
        "instance normalization that keeps running statistics is not lowered",
    )
    x = operand(t, input, "its input")
    axes = range(2, input.rank)
    y = normalized(t, x, axes, eps, centre=True).computed(t)
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
    eps: float,
) -> Lazy:
    """input [N,C,*S], the others [C] -> [N,C,*S]; input * factor + offset from constant
    running statistics
    """
    uses_running_statistics = (
        not training and running_mean is not None and running_var is not None
    )
    t.refuse_unless(
        uses_running_statistics,
        "normalization with the statistics of the batch is not lowered",
    )
    assert running_mean is not None and running_var is not None
    parameters = (weight, bias, running_mean, running_var)
    t.refuse_unless(
        all(value is None or value.constant is not None for value in parameters),
        "normalization with a weight or statistics computed at run time is not lowered",
    )
    real_weight = None if weight is None else real(t, weight)
    real_bias = None if bias is None else real(t, bias)
    mean = real(t, running_mean)
    variance = real(t, running_var)
    factor, offset = factor_and_offset(t, real_weight, real_bias, mean, variance, eps)
    x = operand(t, input, "its input")
    shape = channel_shape(input)
    return multiply_add(t, x, t.reshape(factor, shape), t.reshape(offset, shape))
