"""``Asking``: a support check for compilers that know what they take only by compiling it."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from ..errors import Unsupported
from ..exported_program import argument_of, build_program, copy_node, flat_call, placeholder_of

REMEMBERED = 10_000
"""How many answers are kept. One may take milliseconds, and the calls of a network repeat."""


class Asking:
    """A ``why_not`` that asks a compiler about each call by itself.

    ``compile`` gets a program of that one call, whose operands are inputs, and raises Unsupported with the reason if it
    cannot compile it; what it returns is not used. It has to decide by operator, literals, types and shapes: calls that
    are alike in these are asked about once in the life of this object. ``for_all(node, reason)``: whether a refusal is
    one of the operator, whatever the types and shapes, so that it is asked about no more.
    """

    def __init__(
        self, compile: Callable[[ExportedProgram], object], for_all: Callable[[Node, str], bool] = lambda *_: False
    ) -> None:
        self.compile, self._for_all = compile, for_all
        self._refused: dict[Any, str] = {}
        self._answers: OrderedDict[str, str | None] = OrderedDict()

    def __call__(self, node: Node) -> str | None:
        """Why ``node`` is not taken; None if it is."""
        if node.target in self._refused:
            return self._refused[node.target]
        key = _described(node)
        if key not in self._answers:
            try:
                self.compile(program_of(node))
                self._answers[key] = None
            except Unsupported as refusal:
                self._answers[key] = refusal.message
                if self._for_all(node, refusal.message):
                    self._refused[node.target] = refusal.message
            if len(self._answers) > REMEMBERED:
                self._answers.popitem(last=False)
        return self._answers[key]


def program_of(node: Node) -> ExportedProgram:
    """A program of this call alone: its operands are inputs, its results, as far as they are used, outputs."""
    graph = Graph()
    copies = {operand: placeholder_of(graph, operand) for operand in node.all_input_nodes}
    results = [copies.setdefault(node, copy_node(graph, node, copies.__getitem__))]
    if isinstance(node.meta.get("val"), (tuple, list)):
        results = [copy_node(graph, user, copies.__getitem__) for user in _used(node)]
    operands = [copies[operand] for operand in node.all_input_nodes]
    graph.output(tuple(results))
    inputs = [InputSpec(InputKind.USER_INPUT, argument_of(n), None) for n in operands]
    outputs = [OutputSpec(OutputKind.USER_OUTPUT, argument_of(n), None) for n in results]
    like: Any = SimpleNamespace(state_dict={}, constants={}, range_constraints={}, _guards_code=[])
    call = flat_call(len(operands), len(results))
    return build_program(torch.nn.Module(), graph, inputs, outputs, like, call, check=False)


def _used(node: Node) -> list[Node]:
    return [user for user in node.users if user.target is operator.getitem]


def _described(node: Node) -> str:
    """A text that calls have in common of which a compiler says the same."""
    operands = {operand: f"%{k} {_types(operand)}" for k, operand in enumerate(node.all_input_nodes)}
    arguments = torch.fx.map_arg((node.args, node.kwargs), operands.__getitem__)
    return f"{node.target} {arguments} {[user.args[1] for user in _used(node)]} {_types(node)}"


def _types(node: Node) -> str:
    val = node.meta.get("val")
    values = [val] if isinstance(val, torch.Tensor) else pytree.tree_leaves(val)  # walking a tree takes far longer
    return str([f"{v.dtype}{list(v.shape)}" if isinstance(v, torch.Tensor) else type(v).__name__ for v in values])
