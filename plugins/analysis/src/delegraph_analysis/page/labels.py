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
        """Return the type of a value of ``node.meta["val"]``, such as ``float32[batch, 3]``
        or ``int``; "" for None.

        The types of a list of values are separated by commas.
        """
        if isinstance(value, torch.Tensor):
            sizes = ", ".join(map(self.notation.size, value.shape))
            return f"{_name_of_dtype(value.dtype)}[{sizes}]"
        if isinstance(value, (list, tuple)):
            return ", ".join(map(self.type, value))
        return _NUMBERS.get(type(value), type(value).__name__)

    def value(self, node: Node, named: bool = True) -> str:
        """Return the value of ``node`` as text: ``name: float32[2, 3]``.

        Without a recorded type, it is the name alone. ``named=False``: the type alone.
        """
        # cached, because a picture shows it in a box, at a wire and in a tooltip
        if node not in self._types:
            self._types[node] = self.type(node.meta.get("val"))
        type_text = self._types[node]
        if not named:
            return type_text
        return f"{node.name}: {type_text}" if type_text else node.name

    def call(self, node: Node, hidden: Iterable[Node] = ()) -> Iterator[str]:
        """Yield the lines of a call's tooltip.

        These are the operator with its operands, the result, the constant operands, and
        the user's line. ``hidden``: the constants, which pictures do not draw.
        """
        constants = set(hidden)
        operands = ", ".join(operand.name for operand in node.all_input_nodes)
        yield f"{operator_name(node)}({operands})"
        yield self.value(node)
        for operand in node.all_input_nodes:
            if operand in constants:
                yield f"constant {self.value(operand)}"
        source = source_of(node)
        if source is not None:
            yield f"at {source}"


@lru_cache
def _name_of_dtype(dtype: torch.dtype) -> str:
    """Return the name of a dtype without ``torch.``, such as ``float32``."""
    return str(dtype).removeprefix("torch.")


def stem(operator: str) -> str:
    """Return a short name of an operator of torch: ``add`` for ``aten.add.Tensor``.

    Other names are not shortened.
    """
    if operator.startswith(_OF_TORCH) and operator.count(".") == 2:
        return operator.split(".")[1]
    return operator
