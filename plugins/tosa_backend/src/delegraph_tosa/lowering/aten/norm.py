"""Batch, layer, RMS, group and instance normalization.

Batch normalization uses constant statistics. The others compute theirs from the input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ...ir.graph import Value
from ...ir.types import DType
from ..builder import Tosa
from ..promotion import converted
from ..registry import lowers
from ..torch_values.tensor_types import finfo
from .reduce import average

aten = torch.ops.aten


def _batch_normalized(
    t: Tosa,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    eps: float,
) -> Value:
    """x [N,C,*S], statistics, weight, bias [C] -> [N,C,*S]: x * factor + offset.

    If the statistics are constant, so are factor and offset, and a pass folds them into
    the preceding convolution.
    """
    factor, offset = factor_and_offset(t, weight, bias, mean, variance, eps)
    shape = channel_shape(x)
    scaled = t.mul(x, t.reshape(factor, shape))
    return t.add(scaled, t.reshape(offset, shape))


def factor_and_offset(
    t: Tosa,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    eps: float,
) -> tuple[Value, Value]:
    """Return factor and offset [C] of a batch norm, which is x * factor + offset.

    factor = weight / sqrt(variance + eps), offset = bias - mean * factor. The arguments
    are [C] too.
    """
    factor = t.rsqrt(t.add(variance, eps))
    if weight is not None:
        factor = t.mul(factor, weight)
    scaled_mean = t.mul(mean, factor)
    if bias is None:
        return factor, t.negate(scaled_mean)
    return factor, t.sub(bias, scaled_mean)


def channel_shape(x: Value) -> tuple[int, ...]:
    """Return the shape (1, C, 1, ..) in which per-channel numbers broadcast with x."""
    inner_axes = x.rank - 2
    return (1, x.shape[1]) + (1,) * inner_axes


def last_axes(x: Value, normalized_shape: Sequence[int]) -> Sequence[int]:
    """Return the last axes of x, which have the sizes ``normalized_shape``."""
    return range(x.rank - len(normalized_shape), x.rank)


@lowers(aten.batch_norm.default)
def batch_norm(
    t: Tosa,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    eps: float,
) -> Value:
    """input [N,C,*S] -> [N,C,*S]"""
    t.refuse_unless(
        not training and running_mean is not None and running_var is not None,
        "batch normalization with statistics of the batch is not lowered, only with"
        " running ones",
    )
    assert running_mean is not None
    assert running_var is not None
    _expect_one_type(t, input, weight, bias, running_mean, running_var)
    return _batch_normalized(t, input, weight, bias, running_mean, running_var, eps)


@lowers(aten._native_batch_norm_legit_no_training.default)
def _native_batch_norm_legit_no_training(
    t: Tosa,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    eps: float,
) -> tuple[Value, None, None]:
    """input [N,C,*S] -> [N,C,*S]; torch's other two results are for training and are
    not lowered
    """
    _expect_one_type(t, input, weight, bias, running_mean, running_var)
    y = _batch_normalized(t, input, weight, bias, running_mean, running_var, eps)
    return y, None, None


def _expect_one_type(t: Tosa, input: Value, *others: Value | None) -> None:
    """Raise Unsupported unless the statistics and parameters have the input's type."""
    types = {v.dtype for v in (input, *others) if v is not None}
    t.refuse_unless(
        len(types) == 1,
        "batch normalization with statistics of another type than the input is not"
        " lowered",
    )


# ---- statistics of the input itself


class Standardized(NamedTuple):
    """A standardized tensor and its statistics: y = (x - mean) * scale, in fp32."""

    y: Value
    mean: Value
    scale: Value
    """1 / sqrt(variance + eps)"""


def _standardized(t: Tosa, x: Value, axes: Sequence[int], eps: float) -> Standardized:
    """x [*S] -> y [*S]; mean and scale have size 1 along ``axes``.

    Where the variance overflows (deviations above 1e19), y is 0; torch returns 0 or NaN
    there.
    """
    x = converted(t, x, DType.FP32)
    mean = average(t, x, axes, keepdim=True)
    difference = t.sub(x, mean)
    variance = average(t, t.mul(difference, difference), axes, keepdim=True)
    scale = t.rsqrt(t.add(variance, eps))
    return Standardized(t.mul(difference, scale), mean, scale)


def _times_weight_plus_bias(
    t: Tosa, y: Value, weight: Value | None, bias: Value | None, shape: Sequence[int]
) -> Value:
    """Return y * weight + bias in fp32; a weight or bias of None has no effect.

    Both are reshaped to ``shape``, which broadcasts with y.
    """
    if weight is not None:
        weight = converted(t, weight, DType.FP32)
        y = t.mul(y, t.reshape(weight, shape))
    if bias is not None:
        bias = converted(t, bias, DType.FP32)
        y = t.add(y, t.reshape(bias, shape))
    return y


def _layer_norm(
    t: Tosa,
    x: Value,
    normalized_shape: Sequence[int],
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> Standardized:
    """Return the results of ``native_layer_norm`` in the types of torch."""
    axes = last_axes(x, normalized_shape)
    y, mean, scale = _standardized(t, x, axes, eps)
    statistics_type = _statistics_type(x, weight)
    mean = converted(t, mean, statistics_type)
    scale = converted(t, scale, statistics_type)
    y = _times_weight_plus_bias(t, y, weight, bias, normalized_shape)
    return Standardized(converted(t, y, x.dtype), mean, scale)


def _statistics_type(x: Value, weight: Value | None) -> DType:
    """Return torch's type of the statistics: the weight's, which may be wider."""
    return x.dtype if weight is None else weight.dtype


@lowers(aten.layer_norm.default)
def layer_norm(
    t: Tosa,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> Value:
    """input [*A,*S], weight [*S], bias [*S] -> [*A,*S]; computed in fp32, the
    statistics too
    """
    return _layer_norm(t, input, normalized_shape, weight, bias, eps).y


@lowers(aten.native_layer_norm.default)
def native_layer_norm(
    t: Tosa,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> tuple[Value, Value, Value]:
    """input [*A,*S] -> [*A,*S], its means and 1 / standard deviations [*A,1,..]"""
    return _layer_norm(t, input, normalized_shape, weight, bias, eps)


@lowers(aten.rms_norm.default)
def rms_norm(
    t: Tosa,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None,
    eps: float | None,
) -> Value:
    """input [*A,*S], weight [*S] -> [*A,*S]; x / sqrt(mean(x^2) + eps); an ``eps`` of
    None is the machine epsilon
    """
    x = converted(t, input, DType.FP32)
    axes = last_axes(input, normalized_shape)
    if eps is None:
        eps = finfo(input.dtype).eps
    mean_square = average(t, t.mul(x, x), axes, keepdim=True)
    scale = t.rsqrt(t.add(mean_square, eps))
    y = t.mul(x, scale)
    y = _times_weight_plus_bias(t, y, weight, None, normalized_shape)
    return converted(t, y, input.dtype)


def _standardized_groups(t: Tosa, x: Value, groups: int, eps: float) -> Standardized:
    """x [N,C,*S] -> y [N,C,*S], standardized over each of ``groups`` of channels.

    The statistics are [N,groups,1].
    """
    batch = x.shape[0]
    group_size = math.prod(x.shape[1:]) // groups
    in_groups = t.reshape(x, (batch, groups, group_size))
    result = _standardized(t, in_groups, [2], eps)
    return result._replace(y=t.reshape(result.y, x.shape))


@lowers(aten.group_norm.default)
def group_norm(
    t: Tosa,
    input: Value,
    num_groups: int,
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> Value:
    """input [N,C,*S], weight [C], bias [C] -> [N,C,*S]"""
    y = _standardized_groups(t, input, num_groups, eps).y
    y = _times_weight_plus_bias(t, y, weight, bias, channel_shape(input))
    return converted(t, y, input.dtype)


@lowers(aten.native_group_norm.default)
def native_group_norm(
    t: Tosa,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[Value, Value, Value]:
    """input [N,C,*S] -> [N,C,*S], means and 1 / standard deviations [N,group]"""
    y, mean, scale = _standardized_groups(t, input, group, eps)
    statistics_type = _statistics_type(input, weight)
    mean = converted(t, t.reshape(mean, (N, group)), statistics_type)
    scale = converted(t, t.reshape(scale, (N, group)), statistics_type)
    y = _times_weight_plus_bias(t, y, weight, bias, channel_shape(input))
    return converted(t, y, input.dtype), mean, scale


@lowers(aten.instance_norm.default)
def instance_norm(
    t: Tosa,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    use_input_stats: bool,
    eps: float,
) -> Value:
    """input [N,C,*S], weight [C], bias [C] -> [N,C,*S]; statistics over each channel of
    each sample
    """
    if not use_input_stats and running_mean is not None and running_var is not None:
        _expect_one_type(t, input, weight, bias, running_mean, running_var)
        return _batch_normalized(t, input, weight, bias, running_mean, running_var, eps)
    t.refuse_unless(
        running_mean is None,
        "instance normalization that keeps running statistics is not lowered",
    )
    # one group a channel
    return group_norm(t, input, input.shape[1], weight, bias, eps)
