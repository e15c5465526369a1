"""Correct ExecuTorch's partitioner for XNNPACK, where XNNPACK cannot load the result.

The partitioner marks a quantize or dequantize as part of a neighbouring call, which
XNNPACK then computes in integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from delegraph_engines import quietly
from torch.fx import Node

with quietly():
    from executorch.backends.xnnpack.utils.quant_utils import (
        IS_IMPLICIT_Q_DQ_TAG,
        is_dequant,
        is_quant,
    )
    from executorch.backends.xnnpack.utils.utils import get_param_tensor, is_param_node

_MOVES = (
    "cat.default",
    "max_pool2d.default",
    "permute_copy.default",
    "view_copy.default",
)
"""Operators that XNNPACK computes by moving integers.

Their operands and results must have one scale and zero point.
"""
_RESCALES_BELOW = 256
"""XNNPACK's runtime loads no product that rescales integers by this factor or more."""

_LOWEST_OF_GROUPS = -8
_SIZE_OF_GROUPS = 32
"""XNNPACK supports a scale for each group only for four bits and multiples of 32."""


def correct(configs: Iterable[tuple[str, Any]]) -> None:
    """Correct the configurations of a partitioner, given with their operators."""
    for operator, config in configs:
        if hasattr(config, "get_deps"):
            config.get_deps = _without_marks_of_refused(config.get_deps)
        if operator in _MOVES:
            config.get_node_and_deps = _in_floats_between_scales(
                config.get_node_and_deps
            )


def _without_marks_of_refused(get_deps: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``get_deps`` that leaves no marks if it does not take the call.

    The original marks the calls around a product or convolution in any case. Another
    call may share such a quantize or dequantize. It would then be compiled as part of a
    call that is not in the partition. XNNPACK cannot load such a graph, also with
    ExecuTorch's own lowering.
    """

    def corrected(node: Node, program: Any) -> Any:
        before = [n for n in _around(node) if IS_IMPLICIT_Q_DQ_TAG not in n.meta]
        is_taken, deps = get_deps(node, program)
        if _rescaling(node, program) >= _RESCALES_BELOW or _has_other_groups(node):
            is_taken = False
        if not is_taken:
            for unmarked in before:
                unmarked.meta.pop(IS_IMPLICIT_Q_DQ_TAG, None)
        return is_taken, deps

    return corrected


def _rescaling(node: Node, program: Any) -> float:
    """Return the factor by which a product rescales integers; 0 if it is not known.

    It is the product of the operands' scales divided by the result's scale. Of a scale
    for each channel, the largest counts.
    """
    operands = [n for n in map(_through_layout, node.all_input_nodes[:3]) if n]
    given = [_scale(n, program) for n in operands if is_dequant(n)]
    near = _around(node) & _users_in_two_steps(node)
    made = [_scale(n, program) for n in near if is_quant(n)]
    if len(given) < 2 or not made or None in (*given[-2:], *made):
        return 0.0
    smallest = min(filter(None, made), default=math.inf)
    return math.prod(filter(None, given[-2:])) / smallest


def _through_layout(operand: Node) -> Node | None:
    """Return the operand if it is a dequantize, else the first input of its call."""
    if not operand.all_input_nodes:
        return None
    return operand if is_dequant(operand) else operand.all_input_nodes[0]


def _has_other_groups(node: Node) -> bool:
    """Return whether an operand of a product has groups that XNNPACK does not support."""
    for near in node.all_input_nodes[:3]:
        operand: Any = _through_layout(near) or near
        if "dequantize_affine" not in str(operand.target):
            continue
        integers = operand.args[0]
        group = operand.args[1][-1]
        lowest = operand.args[5]
        is_grouped = group < integers.meta["val"].shape[-1]
        if is_grouped and (lowest < _LOWEST_OF_GROUPS or group % _SIZE_OF_GROUPS != 0):
            return True
    return False


def _users_in_two_steps(node: Node) -> set[Node]:
    found = set(node.users)
    for user in node.users:
        found |= set(user.users)
    return found


def _scale(node: Node, program: Any) -> float | None:
    """Return the scale of a quantize or dequantize, the largest of its channels.

    None if it is computed at run time.
    """
    scale = node.args[1] if "quantize_per" in str(node.target) else None
    if isinstance(scale, Node):
        if not is_param_node(program, scale):
            return None
        values = get_param_tensor(program, scale)
        return None if values is None else float(values.max())
    return float(scale) if isinstance(scale, (int, float)) else None


def _around(node: Node) -> set[Node]:
    """Return the calls at most two steps from ``node``, which ``get_deps`` may mark."""
    near = {*node.all_input_nodes, *node.users}
    return near | {other for n in near for other in (*n.all_input_nodes, *n.users)}


def _in_floats_between_scales(
    get_node_and_deps: Callable[..., Any],
) -> Callable[..., Any]:
    """Return a ``get_node_and_deps`` that computes in floats between different scales.

    XNNPACK cannot load a graph that moves integers of one scale to another.
    """

    def corrected(node: Node, program: Any) -> Any:
        around = [
            n
            for n in (*node.all_input_nodes, *node.users)
            if is_dequant(n) or is_quant(n)
        ]
        scales = {n.args[1:] for n in around}
        return [node] if len(scales) > 1 else get_node_and_deps(node, program)

    return corrected
