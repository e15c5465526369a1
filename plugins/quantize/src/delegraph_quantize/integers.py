"""Keeps integers, such as positions and masks, unchanged by quantizers.

XNNPACK's quantizer annotates additions and products of any type, and writes their
numbers as tensors of floats. Positions would then become floats, which cannot index.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from .unscaled import bodies, observed, observer_calls, remove_observers


class NumbersOfIntegers:
    """Remembers number arguments of calls that make integers or truth values.

    A quantizer replaces such numbers by tensors; ``restore`` undoes that.
    """

    def __init__(self, module: GraphModule) -> None:
        """Remember the numbers in the graph of ``module`` and in its subgraphs."""
        self._before = {path: _numbers(body) for path, body in _graphs_by_path(module)}

    def restore(self, prepared: GraphModule) -> None:
        """Replace tensors by the remembered numbers, in the same calls of ``prepared``.

        ``prepared`` is the module after the quantizer's transformations. A call is the
        same if its name and the path of its graph are equal.
        """
        for path, body in _graphs_by_path(prepared):
            numbers = self._before.get(path, {})
            for node in body.graph.nodes:
                for position, number in numbers.get(node.name, ()):
                    current = node.args[position]
                    # a node in place of the number is the quantizer's tensor
                    if isinstance(current, Node):
                        node.update_arg(position, number)
                        if not current.users:
                            body.graph.erase_node(current)
            body.recompile()


def _graphs_by_path(module: GraphModule) -> list[tuple[str, GraphModule]]:
    """Return the module and the graph modules in it, with their paths."""
    return [
        (path, part)
        for path, part in module.named_modules()
        if isinstance(part, GraphModule)
    ]


def _numbers(body: GraphModule) -> dict[str, list[tuple[int, Any]]]:
    """Return the numbers in the arguments of each call that makes no floats.

    The result maps the name of the call to pairs of position and number.
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
    """Remove observers of integers, and those of calls that make or take integers.

    Such observers would pass on floats.
    """
    for body in bodies(prepared):
        integers = {
            node for node in observer_calls(body) if not is_float(observed(node))
        }
        if integers:
            remove_observers(body, integers)


def is_float(made: Node) -> bool:
    """Return whether the recorded value of a call is floats, or unknown."""
    value = made.meta.get("val")
    return not isinstance(value, torch.Tensor) or value.is_floating_point()
