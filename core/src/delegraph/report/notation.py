"""How a report writes the values and calls of a program: types, symbolic sizes with names that a user knows, lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from ..delegates.lowered_module import Argument
from ..exported.call_names import operator_name
from ..exported.size_names import names_of_symbols
from ..exported_program import CALL_DELEGATE
from ..source import source_of

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_SYMBOL = re.compile(r"[su](?<![\w.].)\d+(?!\w)")
"""A size as torch calls it: ``s77``, or ``u0`` if data decides it.

The letter comes first in the pattern, and what must not stand before it is checked afterwards: such a search is four
times as fast.
"""
_OF_TORCH = ("aten.", "quantized_decomposed.")
_PARAMETER = re.compile(r"arg(?<![\w.]arg)\d+_\d+(?!\w)")
"""A name that torch gives to inputs of loop bodies."""
_NUMBERS = {torch.SymInt: "int", torch.SymFloat: "float", torch.SymBool: "bool", type(None): ""}


class Notation:
    """How values of one program are written. ``nodes`` are those of its own graph, in order.

    torch's symbols (``s77``) get the names of ``Dim("batch")``, as long as the program is the one that was exported:
    files do not keep these. Other symbols are called after where they come from: ``x.size(0)``.
    """

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._nodes = nodes
        self._written: dict[Any, str] = {}
        self._types: dict[Node, str] = {}

    def size(self, size: Any) -> str:
        """A size as text, with names in place of symbols."""
        if not isinstance(size, _SYMBOLIC):
            return str(size)
        expression = size.node.expr
        if expression not in self._written:
            self._written[expression] = self.expression(expression)
        return self._written[expression]

    def expression(self, expression: Any) -> str:
        """A sympy expression of torch's symbols as text, with names in place of them."""
        return str(expression.xreplace(self._symbols))

    def text(self, text: str) -> str:
        """A backend's text, with names in place of torch's symbols; a word that is also the name of a value stays.

        Inputs of loop bodies, which have names of torch's own, get the names of the values that a loop begins with.
        """
        named = _SYMBOL.sub(lambda found: self._texts.get(found[0], found[0]), str(text))
        return _PARAMETER.sub(lambda found: self._operands.get(found[0], found[0]), named)

    @cached_property
    def _operands(self) -> dict[str, str]:
        """Name of an input of a loop body -> name of the value that it begins as.

        If several bodies use a name for different values, it is left out.
        """
        nodes = list(self._nodes)
        found: dict[str, set[str]] = {}
        for name, operand in _names_in_bodies(nodes):
            found.setdefault(name, set()).add(operand)
        known = {node.name for node in nodes}
        return {name: operands.pop() for name, operands in found.items() if len(operands) == 1 and name not in known}

    @cached_property
    def _texts(self) -> dict[str, str]:
        """torch's name of a symbol -> the name to show, without symbols whose name a value has."""
        names = {node.name for node in self._nodes}
        return {symbol.name: str(name) for symbol, name in self._symbols.items() if symbol.name not in names}

    @cached_property
    def _symbols(self) -> dict[sympy.Symbol, sympy.Symbol]:
        """Symbol -> a symbol of the name to show."""
        names = names_of_symbols(list(self._nodes))
        return {symbol: sympy.Symbol(name, integer=True) for symbol, name in names.items()}

    def type(self, value: Any) -> str:
        """The type of a recorded value, or of several: ``float32[batch, 3]``."""
        if isinstance(value, torch.Tensor):
            return f"{_name_of_dtype(value.dtype)}[{', '.join(map(self.size, value.shape))}]"
        if isinstance(value, (list, tuple)):
            return ", ".join(map(self.type, value))
        return _NUMBERS.get(type(value), type(value).__name__)

    def argument(self, argument: Argument) -> Argument:
        """A value that crosses the border of a delegate, with its sizes as text."""
        shape = argument.shape and tuple(size if isinstance(size, int) else self.size(size) for size in argument.shape)
        return replace(argument, shape=shape)

    def value(self, node: Node, named: bool = True) -> str:
        """``name: float32[2, 3]``; the type alone if ``named`` is false."""
        if node not in self._types:  # remembered, because a box, a line and a tooltip show it
            self._types[node] = self.type(node.meta.get("val"))
        shown = self._types[node]
        return f"{node.name}: {shown}" if named and shown else node.name if named else shown

    def call(self, node: Node, hidden: Iterable[Node] = ()) -> Iterator[str]:
        """The tooltip of a call, line by line.

        What it computes from what, constants (``hidden`` nodes), and the user's line.
        """
        constants = set(hidden)
        yield f"{operator_name(node)}({', '.join(n.name for n in node.all_input_nodes)})"
        yield self.value(node)
        yield from (f"constant {self.value(n)}" for n in node.all_input_nodes if n in constants)
        source = source_of(node)
        if source is not None:
            yield f"at {source}"


def _name_in_program(value: Node) -> str:
    """What the user's program calls a value, also if a delegate computes it now."""
    # behind a cast at a delegate's border
    made = value.all_input_nodes[0] if "boundary" in value.meta else value
    call, index = (*made.args, None, None)[:2]
    if not isinstance(call, Node) or call.target is not CALL_DELEGATE or not isinstance(index, int):
        return made.name
    module: Any = getattr(made.graph.owning_module, str(call.all_input_nodes[0].target))
    return str(module.outputs[index].name)


_NOTHING: Mapping[str, str] = MappingProxyType({})


def _names_in_bodies(nodes: Iterable[Node], outer: Mapping[str, str] = _NOTHING) -> Iterator[tuple[str, str]]:
    """(name of an input of a subgraph, name of the value that it begins as), for subgraphs at any depth.

    ``outer`` has such names for the graph of ``nodes``, if that is a subgraph, too.
    """
    for owner in (n for n in nodes if n.op == "get_attr"):
        body: Any = getattr(owner.graph.owning_module, str(owner.target), None)
        for call in owner.users if isinstance(body, GraphModule) else ():
            names = [n.name for n in body.graph.nodes if n.op == "placeholder"]
            given = pytree.tree_leaves(call.args)
            pairs = zip(reversed(names), reversed(given), strict=False)  # operands are the last arguments of a call
            inside = {name: outer.get(v.name) or _name_in_program(v) for name, v in pairs if isinstance(v, Node)}
            yield from inside.items()
            yield from _names_in_bodies(body.graph.nodes, inside)


@lru_cache
def _name_of_dtype(dtype: torch.dtype) -> str:
    """A dtype without ``torch.``."""
    return str(dtype).removeprefix("torch.")


def stem(operator: str) -> str:
    """``add`` for ``aten.add.Tensor``; operators of other libraries keep their whole name."""
    return operator.split(".")[1] if operator.startswith(_OF_TORCH) and operator.count(".") == 2 else operator
