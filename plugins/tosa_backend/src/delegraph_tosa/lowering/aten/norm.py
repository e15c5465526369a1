"""Normalization."""

from __future__ import annotations

import torch

from ...ir.graph import Value
from ..builder import Tosa
from ..registry import lowers

aten = torch.ops.aten


def normalized(
    t: Tosa, x: Value, weight: Value | None, bias: Value | None, mean: Value, variance: Value, eps: float
) -> Value:
    """x [N,C,*S], the others [C] -> [N,C,*S], written as x * k + s.

    With constant statistics k and s fold, and a pass folds them further into a convolution before.
    """
    k = t.rsqrt(t.add(variance, eps))
    k = k if weight is None else t.mul(k, weight)
    centre = t.mul(mean, k)
    s = t.negate(centre) if bias is None else t.sub(bias, centre)
    return t.add(t.mul(x, _per_channel(t, k, x)), _per_channel(t, s, x))


def _per_channel(t: Tosa, v: Value, x: Value) -> Value:
    """v [C] -> [1,C,1,...], which broadcasts with x [N,C,*S]"""
    return t.reshape(v, (1, x.shape[1], *[1] * (x.rank - 2)))


@lowers(aten.batch_norm.default)
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
) -> Value:
    """input [N,C,*S] -> [N,C,*S]"""
    if training or running_mean is None or running_var is None:
        t.require(False, "batch normalization with statistics of the batch is not lowered, only with running ones")
    assert running_mean is not None and running_var is not None
    _check_types(t, input, weight, bias, running_mean, running_var)
    return normalized(t, input, weight, bias, running_mean, running_var, eps)


@lowers(aten._native_batch_norm_legit_no_training.default)
def _native_batch_norm_legit_no_training(
    t: Tosa,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[Value, None, None]:
    """input [N,C,*S] -> [N,C,*S]; what training would save is empty"""
    _check_types(t, input, weight, bias, running_mean, running_var)
    return normalized(t, input, weight, bias, running_mean, running_var, eps), None, None


def _check_types(t: Tosa, input: Value, *others: Value | None) -> None:
    types = {v.dtype for v in (input, *others) if v is not None}
    t.require(len(types) == 1, "batch normalization with statistics of another type than the input is not lowered")
