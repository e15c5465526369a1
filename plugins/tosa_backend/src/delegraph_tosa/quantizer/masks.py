"""Finds masks, which are not quantized.

A mask hides positions of an attention: it is added to the scores, or replaces some of
them. Its hiding elements, at most ``HIDES``, are -inf or so low that softmax makes 0 of
them. No scale fits both these and usual scores, so a softmax reads them as floats.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Node

from ..lowering.integer import data_movement
from ..lowering.integer.sums import HIDES
from .calls import functional, is_float, packet

CARRIERS = frozenset(
    {
        *data_movement.MOVES,
        "add",
        "sub",
        "maximum",
        "minimum",
        "to",
        "_to_copy",
        "masked_fill",
        "where",
        "cat",
        "stack",
    }
)
"""Operators that pass the hiding elements of an operand to their result."""
CREATORS = frozenset(
    {"full", "full_like", "new_full", "masked_fill", "where", "mul", "scalar_tensor"}
)
"""Operators that make a mask from a number."""


def hiding(nodes: Iterable[Node]) -> set[Node]:
    """Return the floats with hiding elements, and the inputs added to scores."""
    nodes = list(nodes)
    found: set[Node] = set()
    for node in nodes:
        if "softmax" in packet(node.target):
            found.update(_inputs_added(node.args[0]))
    for node in nodes:
        if _is_constant_that_hides(node) or _hides(node, found):
            found.add(node)
    return found


def _inputs_added(scores: Any) -> list[Node]:
    """Return inputs of the program that are operands of the sum ``scores``.

    An operand may be an input in another shape or order.
    """
    if not isinstance(scores, Node) or packet(functional(scores.target)) != "add":
        return []
    operands = [_moved_from(node) for node in scores.all_input_nodes]
    if len(operands) != 2:
        return []
    return [node for node in operands if node.op == "placeholder"]


def _moved_from(node: Node) -> Node:
    """Return ``node`` before it was moved to another shape or order."""
    while packet(node.target) in data_movement.MOVES:
        source = node.args[0]
        if not isinstance(source, Node):
            break
        node = source
    return node


def _hides(node: Node, found: set[Node]) -> bool:
    """Return whether a call makes a mask; ``found`` are known masks."""
    if node.op != "call_function" or not is_float(node):
        return False
    name = packet(functional(node.target))
    if name in CREATORS:
        numbers = [a for a in node.args if isinstance(a, (int, float))]
        if any(number <= HIDES for number in numbers):
            return True
    return name in CARRIERS and not found.isdisjoint(node.all_input_nodes)


def _is_constant_that_hides(node: Node) -> bool:
    """Return whether a constant of the model has hiding elements."""
    if node.op != "get_attr" or not is_float(node):
        return False
    owner, _, name = str(node.target).rpartition(".")
    assert node.graph.owning_module is not None
    tensor = getattr(node.graph.owning_module.get_submodule(owner), name)
    if not isinstance(tensor, torch.Tensor) or tensor.numel() == 0:
        return False
    return bool(tensor.min() <= HIDES)
