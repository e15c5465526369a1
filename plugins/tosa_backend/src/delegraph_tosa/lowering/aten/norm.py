"""Normalization."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...ir.graph import Value
from ...ir.types import DType
from ..builder import Tosa
from ..promotion import converted
from ..registry import lowers
from ..torch_values.tensor_types import finfo
from .reduce import average

aten = torch.ops.aten


def normalized(
    t: Tosa,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    eps: float,
) -> Value:
    """x [N,C,*S], statistics, weight, bias [C] -> [N,C,*S]: batch norm as x * k + s.

    If the statistics are constant, so are k and s, and a pass folds them into the
    preceding convolution.
    """
    k, s = factor_and_offset(t, weight, bias, mean, variance, eps)
    shape = channel_shape(x)
    return t.add(t.mul(x, t.reshape(k, shape)), t.reshape(s, shape))


def factor_and_offset(
    t: Tosa,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    eps: float,
) -> tuple[Value, Value]:
    """all [C] -> k, s [C], with which a batch norm is x * k + s"""
    k = t.rsqrt(t.add(variance, eps))
    k = k if weight is None else t.mul(k, weight)
    centre = t.mul(mean, k)
    return k, t.negate(centre) if bias is None else t.sub(bias, centre)


def channel_shape(x: Value) -> tuple[int, ...]:
    """Return the shape (1, C, 1, ..) in which per-channel numbers broadcast with x."""
    return (1, x.shape[1], *(1,) * (x.rank - 2))


def last_axes(
    x: Value, normalized_shape: Sequence[int]
) -> tuple[Sequence[int], tuple[int, ...]]:
    """Return the last axes of x, of sizes ``normalized_shape``, and their shape.

    In this shape, they broadcast with x.
    """
    before = x.rank - len(normalized_shape)
    return range(before, x.rank), (1,) * before + tuple(normalized_shape)


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
    if training or running_mean is None or running_var is None:
        t.require(
            False,
            "batch normalization with statistics of the batch is not lowered, only with"
            " running ones",
        )
    assert running_mean is not None and running_var is not None
    _expect_one_type(t, input, weight, bias, running_mean, running_var)
    return normalized(t, input, weight, bias, running_mean, running_var, eps)


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
    return (
        normalized(t, input, weight, bias, running_mean, running_var, eps),
        None,
        None,
    )


def _expect_one_type(t: Tosa, input: Value, *others: Value | None) -> None:
    """Raise Unsupported unless the statistics and parameters have the input's type."""
    types = {v.dtype for v in (input, *others) if v is not None}
    t.require(
        len(types) == 1,
        "batch normalization with statistics of another type than the input is not"
        " lowered",
    )


# ---- statistics of the input itself


def standardized(
    t: Tosa, x: Value, axes: Sequence[int], eps: float
) -> tuple[Value, Value, Value]:
    """x [*S] -> (x - mean) * scale [*S], mean and scale, over ``axes``, all fp32.

    scale is 1 / sqrt(variance + eps). Where the variance overflows (deviations above
    1e19), the result is 0; torch returns 0 or NaN there.
    """
    x = converted(t, x, DType.FP32)
    mean = average(t, x, axes, True)
    centred = t.sub(x, mean)
    scale = t.rsqrt(t.add(average(t, t.mul(centred, centred), axes, True), eps))
    return t.mul(centred, scale), mean, scale


def _times_weight_plus_bias(
    t: Tosa, y: Value, weight: Value | None, bias: Value | None, shape: Sequence[int]
) -> Value:
    """Return y * weight + bias in fp32.

    Both are reshaped to ``shape``, and None leaves the step out.
    """
    if weight is not None:
        y = t.mul(y, t.reshape(converted(t, weight, DType.FP32), shape))
    return (
        y
        if bias is None
        else t.add(y, t.reshape(converted(t, bias, DType.FP32), shape))
    )


def _layer_norm(
    t: Tosa,
    x: Value,
    normalized_shape: Sequence[int],
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> tuple[Value, Value, Value]:
    """Return ``native_layer_norm``'s results: normalized, means, 1 / deviations."""
    axes, shape = last_axes(x, normalized_shape)
    y, mean, scale = standardized(t, x, axes, eps)
    mean, scale = (converted(t, v, _statistics_type(x, weight)) for v in (mean, scale))
    return (
        converted(t, _times_weight_plus_bias(t, y, weight, bias, shape), x.dtype),
        mean,
        scale,
    )


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
    return _layer_norm(t, input, normalized_shape, weight, bias, eps)[0]


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
    axes, shape = last_axes(input, normalized_shape)
    epsilon = finfo(input.dtype).eps if eps is None else eps
    y = t.mul(x, t.rsqrt(t.add(average(t, t.mul(x, x), axes, True), epsilon)))
    return converted(t, _times_weight_plus_bias(t, y, weight, None, shape), input.dtype)


def _grouped(t: Tosa, x: Value, groups: int, eps: float) -> tuple[Value, Value, Value]:
    """x [N,C,*S] -> x standardized over groups, means, 1 / deviations [N,groups,1]"""
    n = x.shape[0]
    y, mean, scale = standardized(
        t, t.reshape(x, (n, groups, math.prod(x.shape[1:]) // groups)), [2], eps
    )
    return t.reshape(y, x.shape), mean, scale


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
    y, _, _ = _grouped(t, input, num_groups, eps)
    return converted(
        t,
        _times_weight_plus_bias(t, y, weight, bias, channel_shape(input)),
        input.dtype,
    )


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
    y, mean, scale = _grouped(t, input, group, eps)
    mean, scale = (
        converted(t, t.reshape(v, (N, group)), _statistics_type(input, weight))
        for v in (mean, scale)
    )
    return (
        converted(
            t,
            _times_weight_plus_bias(t, y, weight, bias, channel_shape(input)),
            input.dtype,
        ),
        mean,
        scale,
    )


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
        return normalized(t, input, weight, bias, running_mean, running_var, eps)
    t.require(
        running_mean is None,
        "instance normalization that keeps running statistics is not lowered",
    )
    return group_norm(t, input, input.shape[1], weight, bias, eps)
