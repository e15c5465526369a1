"""Results that share memory with inputs or with each other, as those of a lowered
program do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node


@dataclass(frozen=True)
class View:
    """A result that is a view of an input: the input's position, and sizes, strides and
    offset of the view.

    These are numbers, or expressions of the graph's symbolic sizes, which ``sizes``
    finds in the inputs: symbol -> (position, dimension), where the dimension of an int
    is None.
    """

    position: int
    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any
    symbols: dict[sympy.Symbol, tuple[int, int | None]]

    def of(self, inputs: Sequence[Any]) -> torch.Tensor:
        """The view of the input in ``inputs``, those of a call."""
        base: torch.Tensor = inputs[self.position]
        values = {
            s: inputs[k] if d is None else inputs[k].shape[d]
            for s, (k, d) in self.symbols.items()
        }
        sizes, strides = (
            [_number(v, values) for v in part] for part in (self.sizes, self.strides)
        )
        return base.as_strided(
            sizes, strides, base.storage_offset() + _number(self.offset, values)
        )


@dataclass(frozen=True)
class Results:
    """What the results of a graph share memory with.

    ``views``: position of a result -> the view of an input that it is. ``why_not``: why
    a lowered program cannot give such results; "" if it can.
    """

    views: dict[int, View]
    why_not: str = ""


def results_of(graph: GraphModule) -> Results:
    """What the results of ``graph`` share memory with, as the fake tensors of Dynamo
    show it.
    """
    placeholders = graph.graph.find_nodes(op="placeholder")
    inputs: list[Any] = [node.meta.get("example_value") for node in placeholders]
    returned: Any = graph.graph.output_node().args[0]
    outputs: list[Any] = [
        node.meta.get("example_value") if isinstance(node, Node) else node
        for node in returned
    ]
    bases = {
        memory: k
        for k, value in enumerate(inputs)
        if (memory := _memory(value)) is not None
    }
    symbols = _symbols(inputs)
    views: dict[int, View] = {}
    fresh: dict[Any, int] = {}  # memory that the graph made -> a result in it
    for k, value in enumerate(outputs):
        memory = _memory(value)
        if memory in bases:
            view = _view(value, bases[memory], inputs, symbols)
            if view is None:
                return Results(
                    {}, f"its result {k} is a view of an input with other elements"
                )
            views[k] = view
        elif (
            memory is not None
            and memory in fresh
            and not _apart(outputs[fresh[memory]], value)
        ):
            return Results({}, f"its results {fresh[memory]} and {k} share memory")
        elif memory is not None:
            fresh[memory] = k
    return Results(views)


def _view(
    value: torch.Tensor, position: int, inputs: Sequence[Any], symbols: dict[Any, Any]
) -> View | None:
    """``value`` as a view of the input at ``position``; None if its elements are others
    than those of the input.
    """
    base = inputs[position]
    plain = not (value.is_conj() or value.is_neg() or base.is_conj() or base.is_neg())
    if not plain or value.dtype is not base.dtype:
        return None
    offset = _expression(value.storage_offset()) - _expression(base.storage_offset())
    sizes, strides = (
        tuple(map(_expression, part)) for part in (value.shape, value.stride())
    )
    used = set().union(*(v.free_symbols for v in (*sizes, *strides, offset)))
    if not used <= symbols.keys():
        return None
    return View(position, sizes, strides, offset, {s: symbols[s] for s in used})


def _symbols(inputs: Sequence[Any]) -> dict[Any, tuple[int, int | None]]:
    """Symbolic size -> an input that is that number, or has that size."""
    found: dict[Any, tuple[int, int | None]] = {}
    for k, value in enumerate(inputs):
        sizes: Any = value.shape if isinstance(value, torch.Tensor) else ()
        entries = (
            [(value, None)]
            if isinstance(value, torch.SymInt)
            else [(n, d) for d, n in enumerate(sizes)]
        )
        for size, dimension in entries:
            expression = _expression(size)
            if expression.is_Symbol:
                found.setdefault(expression, (k, dimension))
    return found


def _apart(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether no element of ``a`` is one of ``b``, for results in the same memory.
    False if that is not known.
    """
    sizes: list[Any] = [
        *a.shape,
        *b.shape,
        *a.stride(),
        *b.stride(),
        a.storage_offset(),
        b.storage_offset(),
    ]
    if any(isinstance(n, torch.SymInt) for n in sizes) or a.dtype is not b.dtype:
        return False
    places = [
        torch.arange(n) * s
        for t in (a, b)
        for n, s in zip(t.shape, t.stride(), strict=True)
    ]
    of_a = _sums(places[: a.dim()])
    of_b = _sums(places[a.dim() :])
    return not torch.isin(
        of_a + int(a.storage_offset()), of_b + int(b.storage_offset())
    ).any()


def _sums(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """All sums of one element of each of ``parts``."""
    total = torch.zeros(1, dtype=torch.long)
    for part in parts:
        total = (total[:, None] + part).flatten()
    return total


def _memory(value: Any) -> Any:
    """A key that is equal for tensors that share memory; None for what has no memory."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    try:
        return value.untyped_storage()._cdata
    except NotImplementedError:  # a wrapper of other tensors
        return None


def _expression(number: Any) -> Any:
    return (
        number.node.expr if isinstance(number, torch.SymInt) else sympy.Integer(number)
    )


def _number(value: Any, values: dict[Any, int]) -> int:
    return int(value.xreplace(values)) if values else int(value)
