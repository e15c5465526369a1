"""What ExecuTorch's partitioner for XNNPACK says of quantized calls, where XNNPACK
could not load what comes of it.

The partitioner marks a quantize or a dequantize as a part of the call beside it, which
XNNPACK then computes in integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from delegraph.io.quiet import quietly
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
"""Operators whose integers XNNPACK moves as they are: their operands and results have
one scale and zero point.
"""
_RESCALES_BELOW = 256
"""XNNPACK's runtime loads no product whose integers it would have to multiply by this
or more to rescale them.
"""

_LOWEST_OF_GROUPS = -8
_SIZE_OF_GROUPS = 32
"""XNNPACK has weights with a scale for each group of four bits alone, in groups of a
multiple of 32.
"""


def correct(configs: Iterable[tuple[str, Any]]) -> None:
    """Make the configurations of a partitioner, each with the operator that it is for,
    leave no wrong marks.
    """
    for operator, config in configs:
        if hasattr(config, "get_deps"):
            config.get_deps = _marking_what_is_taken(config.get_deps)
        if operator in _MOVES:
            config.get_node_and_deps = _in_floats_between_scales(
                config.get_node_and_deps
            )


def _marking_what_is_taken(get_deps: Callable[..., Any]) -> Callable[..., Any]:
    """``get_deps`` of a product or convolution, which marks the calls around it also
    where it does not take it.

    A quantize behind it, or a dequantize before it, that another call shares would then
    be compiled as a part of a call that is not there: XNNPACK does not load such a
    graph, the same through ExecuTorch itself.
    """

    def corrected(node: Node, program: Any) -> Any:
        before = [n for n in _around(node) if IS_IMPLICIT_Q_DQ_TAG not in n.meta]
        is_taken, deps = get_deps(node, program)
        is_taken = (
            is_taken
            and _rescaling(node, program) < _RESCALES_BELOW
            and not _has_other_groups(node)
        )
        for unmarked in () if is_taken else before:
            unmarked.meta.pop(IS_IMPLICIT_Q_DQ_TAG, None)
        return is_taken, deps

    return corrected


def _rescaling(node: Node, program: Any) -> float:
    """The scales of the operands of a product by that of its result, the largest of its
    channels; 0 if not known.
    """
    operands = [
        n if is_dequant(n) else n.all_input_nodes[0]
        for n in node.all_input_nodes[:3]
        if n.all_input_nodes
    ]
    given = [_scale(n, program) for n in operands if is_dequant(n)]
    made = [_scale(n, program) for n in _around(node) & _behind(node) if is_quant(n)]
    if len(given) < 2 or not made or None in (*given[-2:], *made):
        return 0.0
    return math.prod(filter(None, given[-2:])) / min(
        filter(None, made), default=math.inf
    )


def _has_other_groups(node: Node) -> bool:
    """Whether an operand of a product has a scale for each group, and no groups that
    XNNPACK has.
    """
    for near in node.all_input_nodes[:3]:
        operand = (
            near
            if is_dequant(near) or not near.all_input_nodes
            else near.all_input_nodes[0]
        )
        if "dequantize_affine" in str(operand.target):
            integers = operand.args[0]
            block_size = operand.args[1]
            lowest = operand.args[5]
            is_other = (
                lowest < _LOWEST_OF_GROUPS or block_size[-1] % _SIZE_OF_GROUPS != 0  # type: ignore[operator, index]
            )
            if block_size[-1] < integers.meta["val"].shape[-1] and is_other:  # type: ignore
                return True
    return False


def _behind(node: Node) -> set[Node]:
    return {*node.users, *(after for user in node.users for after in user.users)}


def _scale(node: Node, program: Any) -> float | None:
    """The scale of a quantize or dequantize, the largest of its channels; None if it is
    computed at run time.
    """
    scale = node.args[1] if "quantize_per" in str(node.target) else None
    if isinstance(scale, Node):
        values = (
            get_param_tensor(program, scale) if is_param_node(program, scale) else None
        )
        return None if values is None else float(values.max())
    return float(scale) if isinstance(scale, (int, float)) else None


def _around(node: Node) -> set[Node]:
    """The calls at most two steps from ``node``, which ``get_deps`` may mark."""
    near = {*node.all_input_nodes, *node.users}
    return near | {other for n in near for other in (*n.all_input_nodes, *n.users)}


def _in_floats_between_scales(
    get_node_and_deps: Callable[..., Any],
) -> Callable[..., Any]:
    """``get_node_and_deps`` of an operator in ``_MOVES``: between tensors of several
    scales it is computed in floats.

    XNNPACK does not load a graph that moves integers of one scale to another.
    """

    def corrected(node: Node, program: Any) -> Any:
        around = [
            n
            for n in (*node.all_input_nodes, *node.users)
            if is_dequant(n) or is_quant(n)
        ]
        return (
            get_node_and_deps(node, program)
            if len({n.args[1:] for n in around}) < 2
            else [node]
        )

    return corrected
