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
        self._numbers_by_path = {
            path: _numbers_by_call(body) for path, body in _graphs_by_path(module)
        }

    def restore(self, prepared: GraphModule) -> None:
        """Put the remembered numbers back into the calls of ``prepared``, in place.

        ``prepared`` is ``module`` after the quantizer's transformations. They keep the
        name of a call and the path of its graph, which identify the call. Tensors that
        replaced numbers are erased if nothing else uses them.
        """
        for path, body in _graphs_by_path(prepared):
            numbers_by_call = self._numbers_by_path.get(path, {})
            for call in body.graph.nodes:
                for position, number in numbers_by_call.get(call.name, ()):
                    argument = call.args[position]
                    # a node in place of the number is the quantizer's tensor
                    if isinstance(argument, Node):
                        call.update_arg(position, number)
                        # the tensor is before ``call``: the loop is past it
                        if not argument.users:
                            body.graph.erase_node(argument)
            body.recompile()


def _graphs_by_path(module: GraphModule) -> list[tuple[str, GraphModule]]:
    """Return the module and the graph modules in it, with their paths."""
    return [
        (path, part)
        for path, part in module.named_modules()
        if isinstance(part, GraphModule)
    ]


def _numbers_by_call(body: GraphModule) -> dict[str, list[tuple[int, Any]]]:
    """Return the numbers in the arguments of each call that makes no floats.

    The result maps the name of the call to pairs of position and number.
    """
    numbers_by_call: dict[str, list[tuple[int, Any]]] = {}
    for node in body.graph.nodes:
        if node.op != "call_function" or is_float(node):
            continue
        numbers_by_call[node.name] = [
            (position, argument)
            for position, argument in enumerate(node.args)
            if isinstance(argument, (int, float))
        ]
    return numbers_by_call


def leave_integers(prepared: GraphModule) -> None:
    """Remove the observers of values that are no floats, in place.

    Observers of other values of the calls that make or take these values are removed,
    too. An observer would pass on floats.
    """
    for body in bodies(prepared):
        integers = {
            node for node in observer_calls(body) if not is_float(observed(node))
        }
        if integers:
            remove_observers(body, integers)


def is_float(node: Node) -> bool:
    """Return whether the recorded value of a call is floats, or unknown."""
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or value.is_floating_point()
