"""Values and calls of a program as text, for boxes, edges and tooltips of pictures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import torch
from delegraph.report import Notation
from delegraph_programs import operator_name, source_of
from torch.fx import Node

_OF_TORCH = ("aten.", "quantized_decomposed.")
_NUMBERS = {
    torch.SymInt: "int",
    torch.SymFloat: "float",
    torch.SymBool: "bool",
    type(None): "",
}


class Labels:
    """Labels for the values and calls of one program, with the names of ``notation``."""

    def __init__(self, notation: Notation) -> None:
        self.notation = notation
        self._types: dict[Node, str] = {}

    def type(self, value: Any) -> str:
        """The type of a value as ``node.meta["val"]`` records it: ``float32[batch,
        3]``, ``int``; "" for None.

        The types of a list of values are separated by commas.
        """
        if isinstance(value, torch.Tensor):
            return f"{_name_of_dtype(value.dtype)}[{', '.join(map(self.notation.size, value.shape))}]"
        if isinstance(value, (list, tuple)):
            return ", ".join(map(self.type, value))
        return _NUMBERS.get(type(value), type(value).__name__)

    def value(self, node: Node, named: bool = True) -> str:
        """The value of ``node`` as text: ``name: float32[2, 3]``, or the type alone if
        ``named`` is false.

        A value without a recorded type is written as its name.
        """
        # cached, because a picture shows it in a box, at an edge and in a tooltip
        if node not in self._types:
            self._types[node] = self.type(node.meta.get("val"))
        type_text = self._types[node]
        return (
            f"{node.name}: {type_text}"
            if named and type_text
            else node.name
            if named
            else type_text
        )

    def call(self, node: Node, hidden: Iterable[Node] = ()) -> Iterator[str]:
        """The lines of a call's tooltip: operator with operands, result, constant
        operands, and the user's line.

        ``hidden``: the constants that the picture does not draw; those among the
        operands get a line of their own.
        """
        constants = set(hidden)
        yield (
            f"{operator_name(node)}({', '.join(n.name for n in node.all_input_nodes)})"
        )
        yield self.value(node)
        yield from (
            f"constant {self.value(n)}" for n in node.all_input_nodes if n in constants
        )
        source = source_of(node)
        if source is not None:
            yield f"at {source}"


@lru_cache
def _name_of_dtype(dtype: torch.dtype) -> str:
    """The name of a dtype without ``torch.``: ``float32``."""
    return str(dtype).removeprefix("torch.")


def stem(operator: str) -> str:
    """A short name of an operator: ``add`` for ``aten.add.Tensor``.

    Names of other libraries are not shortened.
    """
    return (
        operator.split(".")[1]
        if operator.startswith(_OF_TORCH) and operator.count(".") == 2
        else operator
    )
