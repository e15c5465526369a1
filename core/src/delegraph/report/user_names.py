"""Writes symbolic sizes, and texts of backends, with names that the user knows.

For example, torch's ``s77`` becomes ``batch``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import sympy
import torch
from delegraph_programs.call_names import unpacked
from delegraph_programs.exported_program import CALL_DELEGATE
from delegraph_programs.size_names import names_of_symbols
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from ..delegates.lowered_module import Argument

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_SYMBOL = re.compile(r"[su](?<![\w.].)\d+(?!\w)")
"""torch's name of a symbolic size: ``s77``, or ``u0`` for a size that depends on data.

The lookbehind is after the letter, not before it: the search is four times as fast.
"""
_PARAMETER = re.compile(r"arg(?<![\w.]arg)\d+_\d+(?!\w)")
"""A name that torch gives to an input of a loop body."""


class Notation:
    """Writes the values of one program with the user's names.

    ``nodes``: the nodes of its graph, in order, but not those of subgraphs. A symbolic size
    (``s77``) gets the name that the user gave it, as in ``Dim("batch")``. Program files
    do not keep these names. A size without such a name is named after the value that
    has it: ``x.size(0)``.
    """

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._nodes = nodes

    def size(self, size: Any) -> str:
        """Return an int or symbolic size as text: ``s0*4 + 1`` -> ``4*batch + 1``."""
        if not isinstance(size, _SYMBOLIC):
            return str(size)
        return str(size.node.expr.xreplace(self._symbols))

    def text(self, text: str) -> str:
        """Return a backend's text, with the user's names in place of torch's.

        Replaced are symbols of sizes (``s77``), and names of inputs of loop bodies
        (``arg0_1``). ``_texts`` and ``_operands`` have the new names.
        """
        # a name that neither table has stays as it is
        with_sizes = _SYMBOL.sub(
            lambda match: self._texts.get(match[0], match[0]), str(text)
        )
        return _PARAMETER.sub(
            lambda match: self._operands.get(match[0], match[0]), with_sizes
        )

    @cached_property
    def _operands(self) -> dict[str, str]:
        """Return name of an input of a loop body -> name of the value in the program.

        For example, ``arg0_1`` -> ``hidden``: the program passes ``hidden`` to the
        loop as the first value of ``arg0_1``. Users know only the name ``hidden``.

        A name is left out if several bodies use it for different values, or if a node
        of the program has it.
        """
        nodes = list(self._nodes)
        operands_of: dict[str, set[str]] = {}  # input -> its values in all bodies
        for name, operand in _names_in_bodies(nodes):
            operands_of.setdefault(name, set()).add(operand)
        node_names = {node.name for node in nodes}
        return {
            name: names.pop()
            for name, names in operands_of.items()
            if len(names) == 1 and name not in node_names
        }

    @cached_property
    def _texts(self) -> dict[str, str]:
        """Return torch's name of a symbol of a size -> the user's name.

        A symbol with the same name as a node is left out.
        """
        names = {node.name for node in self._nodes}
        return {
            symbol.name: str(name)
            for symbol, name in self._symbols.items()
            if symbol.name not in names
        }

    @cached_property
    def _symbols(self) -> dict[sympy.Symbol, sympy.Symbol]:
        """Return torch's symbol -> a symbol with the user's name."""
        names = names_of_symbols(list(self._nodes))
        return {
            symbol: sympy.Symbol(name, integer=True) for symbol, name in names.items()
        }

    def argument(self, argument: Argument) -> Argument:
        """Return an input or output of a delegate with its symbolic sizes as text.

        A shape of None stays None.
        """
        shape = argument.shape and tuple(
            size if isinstance(size, int) else self.size(size)
            for size in argument.shape
        )
        return replace(argument, shape=shape)


def _name_in_program(value: Node) -> str:
    """Return the name of ``value`` in the program before it was lowered.

    ``value``: a node of the lowered program.
    """
    # take the operand of a cast at a delegate's border: users do not know the cast
    producer = value.all_input_nodes[0] if "boundary" in value.meta else value
    # an output of a delegate is unpacked by ``getitem(call, index)``
    call = unpacked(producer)
    if call is None or call.target is not CALL_DELEGATE:
        return producer.name
    # the delegate has the old names of its outputs
    fetch = call.all_input_nodes[0]
    delegate: Any = getattr(producer.graph.owning_module, str(fetch.target))
    return str(delegate.outputs[producer.args[1]].name)


def _names_in_bodies(
    nodes: Iterable[Node], outer: Mapping[str, str] = MappingProxyType({})
) -> Iterator[tuple[str, str]]:
    """Yield (name of a subgraph's input, name in the user's program of its operand).

    ``nodes``: the nodes of one graph. Yields the pairs of all subgraphs that they
    fetch, at any depth. ``outer``: the pairs of this graph's own inputs if it is itself
    a subgraph.
    """
    for fetch in nodes:
        if fetch.op != "get_attr":
            continue
        body: Any = getattr(fetch.graph.owning_module, str(fetch.target), None)
        if not isinstance(body, GraphModule):
            continue
        names = [n.name for n in body.graph.nodes if n.op == "placeholder"]
        for call in fetch.users:
            arguments = pytree.tree_leaves(call.args)
            # The inputs get the last arguments of the call, so pairs are made from the
            # end. Arguments before these, such as the subgraph itself, have no pair.
            pairs = zip(reversed(names), reversed(arguments), strict=False)
            operand_of = {
                name: outer.get(operand.name) or _name_in_program(operand)
                for name, operand in pairs
                if isinstance(operand, Node)
            }
            yield from operand_of.items()
            yield from _names_in_bodies(body.graph.nodes, operand_of)
