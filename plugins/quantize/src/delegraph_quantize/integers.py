"""Integers among the floats, such as positions and masks: no quantizer is to change
what computes them.

XNNPACK's quantizer annotates additions and products of any type, and writes their
numbers as tensors of floats: with them positions become floats, which index nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from .unscaled import bodies, observed, seen, take_away


class NumbersOfIntegers:
    """The numbers that calls of a program have as arguments, where the calls make
    integers or truth values.
    """

    def __init__(self, module: GraphModule) -> None:
        self._before = {path: _numbers(body) for path, body in _by_path(module)}

    def restore(self, prepared: GraphModule) -> None:
        """Let these calls have their numbers again, in the program after a quantizer's
        transformations.
        """
        for path, body in _by_path(prepared):
            numbers = self._before.get(path, {})
            for node in body.graph.nodes:
                for position, number in numbers.get(node.name, ()):
                    written = node.args[position]
                    if isinstance(written, Node):
                        node.update_arg(position, number)
                        if not written.users:
                            body.graph.erase_node(written)
            body.recompile()


def _by_path(module: GraphModule) -> list[tuple[str, GraphModule]]:
    return [
        (path, part)
        for path, part in module.named_modules()
        if isinstance(part, GraphModule)
    ]


def _numbers(body: GraphModule) -> dict[str, list[tuple[int, Any]]]:
    """Name of a call that makes no floats -> position of a number among its arguments,
    and the number.
    """
    calls = [
        node
        for node in body.graph.nodes
        if node.op == "call_function" and not is_float(node)
    ]
    return {
        n.name: [(i, a) for i, a in enumerate(n.args) if isinstance(a, (int, float))]
        for n in calls
    }


def leave_integers(prepared: GraphModule) -> None:
    """Take away observers of integers, which would hand on floats, and of the calls
    that make or take integers.
    """
    for body in bodies(prepared):
        integers = {node for node in seen(body) if not is_float(observed(node))}
        if integers:
            take_away(body, integers)


def is_float(made: Node) -> bool:
    """Whether a call makes floats, as far as its record says."""
    value = made.meta.get("val")
    return not isinstance(value, torch.Tensor) or value.is_floating_point()
