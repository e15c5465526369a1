"""``NumberedGraph``: a partition as a graph for an engine that reads those of
``torch.fx``.
"""

from __future__ import annotations

from typing import Any

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

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""What is called, its arguments and its keyword arguments."""


class NumberedGraph(NumberedCalls):
    """The graph of a partition, with names by which what an engine says of its own
    operators tells the calls.

    Inputs are placeholders ``x0``, ``x1``, ... in the order of ``signature``. Constants
    are fetched as attributes ``c0``, ``c1``, ..., by which ``constants`` has their
    tensors, in C order. Calls are named ``n0``, ``n1``, ... as in ``calls``. An engine
    puts such a name and ``/`` before the names of the operators that it makes of the
    call: then ``calls_in`` finds the numbers in names, and ``refused`` the call in an
    error.

    Where an engine needs other calls than the program has, a subclass says so with
    ``write``.
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
                self.constants[name] = (
                    constant_tensor(program, spec).detach().resolve_neg().contiguous()
                )
                new = self.graph.create_node("get_attr", name, name=name)
            else:
                new = self.graph.placeholder(
                    f"x{len(self._values) - len(self.constants)}"
                )
            self._add(node, new)
        for node in program.graph.nodes:
            if node.op == "call_function":
                target, args, kwargs = self.write(node)
                self._add(
                    node,
                    self.graph.create_node(
                        "call_function", target, args, kwargs, f"n{len(self.calls)}"
                    ),
                )
                self.calls.append(node)
        self.outputs = [self._values[node] for node in output_values(program)]

    def _add(self, node: Node, new: Node) -> None:
        new.meta["val"], self._values[node] = node.meta.get("val"), new

    def write(self, node: Node) -> Call:
        """What to call for ``node``, a call of the program, with operands of this graph
        (``operands``).

        It may consist of several calls: ``part`` adds those before the last.
        """
        return node.target, *self.operands(node.args, node.kwargs)

    def operands(self, *arguments: Any) -> Any:
        """``arguments`` of a call of the program with this graph's nodes in place of
        the program's.
        """
        return torch.fx.map_arg(arguments, self._values.__getitem__)

    def part(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Add a call, named ``n0_in``, that is part of what the next call of the
        program becomes.
        """
        return self.graph.create_node(
            "call_function", target, args, kwargs, f"n{len(self.calls)}_in"
        )
