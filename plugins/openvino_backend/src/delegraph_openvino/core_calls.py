"""Writes calls such as ``conv2d`` and ``batch_norm`` as calls of core ATen.

OpenVINO's frontend knows only those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from delegraph_programs import bound_arguments
from torch._ops import OpOverload
from torch.fx import Node

aten = torch.ops.aten
OneCall = tuple[OpOverload, tuple[Any, ...], dict[str, Any]]
"""An operator, its arguments and its keyword arguments, with nodes for operands."""


def core_call(node: Node) -> OneCall | None:
    """Return the call of core ATen that computes the same, or None.

    If it returns several results, the first one is that of ``node``. ``reshape``
    becomes ``view`` also if torch copies, because OpenVINO has no strides.
    """
    find = CORE_CALLS.get(node.target)
    recorded = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    if find is None or not all(isinstance(val, torch.Tensor) for val in recorded):
        return None
    return find(**bound_arguments(node))


def _cast(
    self: Node, dtype: torch.dtype, non_blocking: bool, copy: bool, memory_format: Any
) -> OneCall | None:
    """Return a plain cast; None if the dtype stays, since torch then copies nothing."""
    if non_blocking or copy or memory_format is not None:
        return None
    if self.meta["val"].dtype is dtype:
        return None
    return aten._to_copy.default, (self,), {"dtype": dtype}


def _convolution(
    input: Node,
    weight: Node,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> OneCall | None:
    """Return a convolution, if the input has a batch and padding is given as numbers."""
    settings = [list(value) for value in (stride, padding, dilation)]
    dimensions = weight.meta["val"].dim() - 2
    if input.meta["val"].dim() != dimensions + 2:  # without a batch
        return None
    if any(len(setting) != dimensions for setting in settings):
        return None
    no_output_padding = [0] * dimensions
    args = (input, weight, bias, *settings, False, no_output_padding, groups)
    return aten.convolution.default, args, {}


def _batch_norm(
    input: Node,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> OneCall | None:
    """Return a batch norm that uses the running statistics, as in inference."""
    if training or running_mean is None or running_var is None:
        return None
    args = (input, weight, bias, running_mean, running_var, momentum, eps)
    return aten._native_batch_norm_legit_no_training.default, args, {}


def _layer_norm(
    input: Node,
    normalized_shape: Any,
    weight: Any,
    bias: Any,
    eps: float,
    cudnn_enable: bool,
) -> OneCall | None:
    args = (input, normalized_shape, weight, bias, eps)
    return aten.native_layer_norm.default, args, {}


def _reshape(self: Node, shape: Any) -> OneCall | None:
    return aten.view.default, (self, shape), {}


def _flatten(self: Node, start_dim: int, end_dim: int) -> OneCall | None:
    """Return a view with the axes joined, if all sizes are known."""
    sizes = list(self.meta["val"].shape) or [1]
    if not all(isinstance(size, int) for size in sizes):
        return None
    start = start_dim % len(sizes)
    end = end_dim % len(sizes) + 1
    shape = [*sizes[:start], prod(sizes[start:end]), *sizes[end:]]
    return aten.view.default, (self, shape), {}


def _adaptive_avg_pool(self: Node, output_size: Any) -> OneCall | None:
    """Return an average pool with ``output_size`` pixels; the mean for a single one."""
    if list(output_size) == [1, 1]:
        return aten.mean.dim, (self, [-1, -2], True), {}
    return aten._adaptive_avg_pool2d.default, (self, output_size), {}


CORE_CALLS: Mapping[Any, Callable[..., OneCall | None]] = {
    aten.to.dtype: _cast,
    **dict.fromkeys(
        (aten.conv1d.default, aten.conv2d.default, aten.conv3d.default), _convolution
    ),
    aten.batch_norm.default: _batch_norm,
    aten.layer_norm.default: _layer_norm,
    aten.reshape.default: _reshape,
    aten.flatten.using_ints: _flatten,
    aten.adaptive_avg_pool2d.default: _adaptive_avg_pool,
}
"""Operator -> the function that ``core_call`` calls with its arguments."""
