"""Correct ExecuTorch's partitioner for XNNPACK, where XNNPACK cannot load the result.

The partitioner has a configuration for each operator. ``get_deps`` of a configuration
decides whether to take a call and the calls around it. It marks a quantize or dequantize
as part of a neighbouring call, which XNNPACK then computes in integers.
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
"""XNNPACK supports a scale for each group only for integers of four bits."""
_SIZE_OF_GROUPS = 32
"""XNNPACK supports only groups with a multiple of 32 elements."""


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
    """Return a ``get_deps`` that removes its marks if it refuses the call.

    The original marks the quantizes and dequantizes around a product or convolution
    even if it refuses the call. If another call in a partition uses a marked dequantize,
    XNNPACK cannot load the graph.
    """

    def corrected(node: Node, program: Any) -> Any:
        unmarked = [n for n in _around(node) if IS_IMPLICIT_Q_DQ_TAG not in n.meta]
        is_taken, deps = get_deps(node, program)
        rescales_too_much = _rescaling(node, program) >= _RESCALES_BELOW
        if rescales_too_much or _has_unsupported_groups(node):
            is_taken = False
        if not is_taken:
            for near in unmarked:
                near.meta.pop(IS_IMPLICIT_Q_DQ_TAG, None)
        return is_taken, deps

    return corrected


def _rescaling(node: Node, program: Any) -> float:
    """Return the factor by which a matrix product rescales integers; 0 if unknown.

    The factor is ``left_scale * right_scale / result_scale``. If each channel of an
    operand has a scale, the largest counts.
    """
    operand_scales = []
    for operand in map(_through_layout, node.all_input_nodes[:3]):
        if operand is not None and is_dequant(operand):
            operand_scales.append(_scale(operand, program))
    # in addmm(bias, x, weight), a dequantized bias comes first: leave it out
    operand_scales = operand_scales[-2:]
    result_scales = [
        _scale(user, program) for user in _users_in_two_steps(node) if is_quant(user)
    ]
    if len(operand_scales) < 2 or not result_scales:
        return 0.0
    if None in operand_scales or None in result_scales:
        return 0.0
    smallest = min(filter(None, result_scales), default=math.inf)
    return math.prod(filter(None, operand_scales)) / smallest


def _through_layout(operand: Node) -> Node | None:
    """Return the operand if it is a dequantize, else the operand's own first input.

    That skips a permute or view between a dequantize and the product. Return None if the
    operand has no inputs.
    """
    if not operand.all_input_nodes:
        return None
    return operand if is_dequant(operand) else operand.all_input_nodes[0]


def _has_unsupported_groups(node: Node) -> bool:
    """Return whether an operand of a product has groups that XNNPACK does not support."""
    for near in node.all_input_nodes[:3]:
        operand: Any = _through_layout(near) or near
        if "dequantize_affine" not in str(operand.target):
            continue
        # dequantize_affine(integers, block_size, scale, zero_point, dtype, lowest, ...)
        integers = operand.args[0]
        group = operand.args[1][-1]
        lowest = operand.args[5]
        is_grouped = group < integers.meta["val"].shape[-1]
        if is_grouped and (lowest < _LOWEST_OF_GROUPS or group % _SIZE_OF_GROUPS != 0):
            return True
    return False


def _users_in_two_steps(node: Node) -> set[Node]:
    """Return the users of ``node``, and their users."""
    found = set(node.users)
    for user in node.users:
        found |= set(user.users)
    return found


def _scale(node: Node, program: Any) -> float | None:
    """Return the scale of a quantize or dequantize; the largest if channels have scales.

    Return None if the scale is computed at run time.
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
    neighbours = {*node.all_input_nodes, *node.users}
    found = set(neighbours)
    for neighbour in neighbours:
        found.update(neighbour.all_input_nodes, neighbour.users)
    return found


def _in_floats_between_scales(
    get_node_and_deps: Callable[..., Any],
) -> Callable[..., Any]:
    """Return a ``get_node_and_deps`` that takes a call alone if its scales differ.

    Without its quantize and dequantize, the call computes in floats. XNNPACK cannot load
    a graph in which a move reads integers of one scale and returns another.
    """

    def corrected(node: Node, program: Any) -> Any:
        scales = set()
        for near in (*node.all_input_nodes, *node.users):
            if is_dequant(near) or is_quant(near):
                scales.add(near.args[1:])
        if len(scales) > 1:
            return [node]
        return get_node_and_deps(node, program)

    return corrected
