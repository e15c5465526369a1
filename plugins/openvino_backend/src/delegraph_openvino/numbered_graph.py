"""``NumberedGraph``: a partition as a ``torch.fx`` graph for an engine."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from delegraph_engines import NumberedCalls, Signature
from delegraph_programs import (
    constant_placeholders,
    constant_tensor,
    output_values,
    placeholders,
)
from torch.export import ExportedProgram
from torch.fx import Graph, Node


class Call(NamedTuple):
    """The target of a call, its arguments and its keyword arguments."""

    target: Any
    args: Any
    kwargs: Any


class NumberedGraph(NumberedCalls):
    """The graph of a partition. Its names identify calls in the engine's messages.

    Inputs are placeholders ``x0``, ``x1``, ... in the order of ``signature``. Constants
    are fetched as attributes ``c0``, ``c1``, ...; ``constants`` has their tensors by
    these names, in C order. Calls are named ``n0``, ``n1``, ... as in ``calls``. An
    engine puts such a name and ``/`` before the names of the operators of the call.
    Then ``calls_in`` finds the numbers in names, and ``refused`` the call in an error.

    If an engine needs other calls than the program has, a subclass overrides ``write``.
    """

    def __init__(self, program: ExportedProgram) -> None:
        super().__init__()
        self.graph = Graph()
        self.signature = Signature.of(program)
        self.constants = dict[str, torch.Tensor]()
        self._values = dict[Node, Node]()
        constant = constant_placeholders(program)
        for node, spec in placeholders(program):
            if node in constant:
                name = f"c{len(self.constants)}"
                tensor = constant_tensor(program, spec).detach()
                self.constants[name] = tensor.resolve_neg().contiguous()
                new = self.graph.create_node("get_attr", name, name=name)
            else:
                earlier_inputs = len(self._values) - len(self.constants)
                new = self.graph.placeholder(f"x{earlier_inputs}")
            self._add(node, new)
        for node in program.graph.nodes:
            if node.op == "call_function":
                call = self.write(node)
                name = f"n{len(self.calls)}"
                new = self.graph.create_node("call_function", *call, name)
                self._add(node, new)
                self.calls.append(node)
        self.outputs = [self._values[node] for node in output_values(program)]

    def _add(self, node: Node, new: Node) -> None:
        """Record ``new`` of this graph as the value of ``node`` of the program."""
        new.meta["val"] = node.meta.get("val")
        self._values[node] = new

    def write(self, node: Node) -> Call:
        """Return the call that replaces ``node``, a call of the program.

        Its operands are nodes of this graph.
        ``operands`` converts operands. If several calls are needed, ``part`` adds those
        before the last.
        """
        return Call(node.target, *self.operands(node.args, node.kwargs))

    def operands(self, *arguments: Any) -> Any:
        """Return ``arguments`` of a call with this graph's nodes as operands."""
        return torch.fx.map_arg(arguments, self._values.__getitem__)

    def part(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Add a call that ``write`` needs before the one that it returns.

        Parts of the first call of the program are named ``n0_in``.
        """
        return self.graph.create_node(
            "call_function", target, args, kwargs, f"n{len(self.calls)}_in"
        )
