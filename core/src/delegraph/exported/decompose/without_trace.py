"""Decompositions into one call that are known beforehand: a trace of one takes several milliseconds.

They are what a trace gives, which a test compares. A call for which that is not certain is traced.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from ..schema import bound_arguments

aten = torch.ops.aten
OneCall = tuple[OpOverload, tuple[Any, ...], dict[str, Any]]
"""An operator, its arguments and its keyword arguments, with nodes for operands."""


def without_trace(node: Node, mode: Any) -> Graph | None:
    """The decomposition of a call, whose graph returns one value; None for a call that has to be traced.

    ``mode``: the fake tensor mode of the recorded values.
    """
    operands = node.all_input_nodes
    # an operand that is passed twice would have two placeholders
    if node.target not in _TRACED or node.kwargs or sum(isinstance(a, Node) for a in node.args) != len(operands):
        return None
    # a cast returns what was recorded; a convolution of one image or of sizes that vary has a trace of its own
    if node.target is not aten.to.dtype and not all(map(_is_static, operands)):
        return None
    call = core_call(node)
    return None if call is None else _graph_of(node, call, mode)


def core_call(node: Node) -> OneCall | None:
    """The one call of core ATen that computes the same, maybe as the first of its results; None if none is known.

    For a compiler that knows core ATen and is to be given ``conv2d``, ``batch_norm`` and ``reshape`` as they
    are. It has no strides, so that this says ``view`` also where torch copies.
    """
    find = CORE_CALLS.get(node.target)
    recorded = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    if find is None or not all(isinstance(val, torch.Tensor) for val in recorded):
        return None
    return find(**bound_arguments(node))


def _graph_of(node: Node, call: OneCall, mode: Any) -> Graph | None:
    """A graph of one call, and of its first result if it has several; None if its result has other strides."""
    graph, (op, args, kwargs) = Graph(), call
    copies = {operand: graph.placeholder(operand.name) for operand in node.all_input_nodes}
    for operand, copy in copies.items():
        copy.meta["val"] = operand.meta["val"]
    args = tuple(copies[a] if isinstance(a, Node) else a for a in args)
    made = graph.create_node("call_function", op, args, kwargs, op.overloadpacket.__name__)
    made.meta["val"] = val = node.meta["val"]
    if op is not aten._to_copy.default:  # a cast returns what was recorded, unknown sizes included
        with mode, torch.no_grad():
            made.meta["val"] = val = op(*(a.meta["val"] if isinstance(a, Node) else a for a in args), **kwargs)
    if isinstance(val, (list, tuple)):
        made, val = graph.create_node("call_function", operator.getitem, (made, 0), {}, "getitem"), val[0]
        made.meta["val"] = val
    graph.output((made,))
    return graph if strides_of(val) == strides_of(node.meta["val"]) else None


def strides_of(tensor: torch.Tensor) -> list[str]:
    """Strides as text, to compare them; without those of dimensions of size 1, which do not matter."""
    return [str(s) for s, d in zip(tensor.stride(), tensor.shape, strict=True) if not (isinstance(d, int) and d == 1)]


def _is_static(operand: Node) -> bool:
    """Whether an operand is a tensor whose sizes are numbers."""
    val = operand.meta.get("val")
    return isinstance(val, torch.Tensor) and all(isinstance(d, int) for d in val.shape)


def _cast(self: Node, dtype: torch.dtype, non_blocking: bool, copy: bool, memory_format: Any) -> OneCall | None:
    """A plain cast; one to the same dtype returns its argument."""
    if (non_blocking, copy, memory_format) != (False, False, None) or self.meta["val"].dtype is dtype:
        return None
    return aten._to_copy.default, (self,), {"dtype": dtype}


def _convolution(
    input: Node, weight: Node, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> OneCall | None:
    """A convolution of a batch."""
    settings, dimensions = [list(value) for value in (stride, padding, dilation)], weight.meta["val"].dim() - 2
    if input.meta["val"].dim() != dimensions + 2 or any(len(value) != dimensions for value in settings):
        return None
    return aten.convolution.default, (input, weight, bias, *settings, False, [0] * dimensions, groups), {}


def _batch_norm(
    input: Node, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: float,
    eps: float, cudnn_enabled: bool,
) -> OneCall | None:  # fmt: skip
    """A batch norm in inference, with statistics."""
    given = (input, weight, bias, running_mean, running_var)
    if training or running_mean is None or running_var is None:
        return None
    return aten._native_batch_norm_legit_no_training.default, (*given, momentum, eps), {}


def _layer_norm(
    input: Node, normalized_shape: Any, weight: Any, bias: Any, eps: float, cudnn_enable: bool
) -> OneCall | None:
    return aten.native_layer_norm.default, (input, normalized_shape, weight, bias, eps), {}


def _reshape(self: Node, shape: Any) -> OneCall | None:
    return aten.view.default, (self, shape), {}


def _flatten(self: Node, start_dim: int, end_dim: int) -> OneCall | None:
    """A view of sizes that are known."""
    sizes = list(self.meta["val"].shape) or [1]
    if not all(isinstance(size, int) for size in sizes):
        return None
    start, end = start_dim % len(sizes), end_dim % len(sizes) + 1
    return aten.view.default, (self, [*sizes[:start], prod(sizes[start:end]), *sizes[end:]]), {}


def _adaptive_avg_pool(self: Node, output_size: Any) -> OneCall | None:
    """An average pool to so many pixels; the mean where that is one."""
    if list(output_size) == [1, 1]:
        return aten.mean.dim, (self, [-1, -2], True), {}
    return aten._adaptive_avg_pool2d.default, (self, output_size), {}


CORE_CALLS: Mapping[Any, Callable[..., OneCall | None]] = {
    aten.to.dtype: _cast,
    **dict.fromkeys((aten.conv1d.default, aten.conv2d.default, aten.conv3d.default), _convolution),
    aten.batch_norm.default: _batch_norm,
    aten.layer_norm.default: _layer_norm,
    aten.reshape.default: _reshape,
    aten.flatten.using_ints: _flatten,
    aten.adaptive_avg_pool2d.default: _adaptive_avg_pool,
}
"""Operator -> the function that ``core_call`` calls with its arguments."""
_TRACED = frozenset({aten.to.dtype, aten.conv2d.default, aten.batch_norm.default})
"""Operators whose ``core_call`` is what a trace gives."""
