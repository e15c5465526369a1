"""Finds results of a graph that share memory with inputs or with each other.

Results of a lowered program never share memory. So views of inputs are made again after
each call, and graphs with other shared memory are not lowered.
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
    """A result that is a view of the input at ``position``.

    Sizes, strides and offset are expressions of symbolic sizes, such as ``s0*4``.
    ``symbols``: symbol -> (position, dimension) of an input with this size; for an int,
    the dimension is None.
    """

    position: int
    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any
    symbols: dict[sympy.Symbol, tuple[int, int | None]]

    def of(self, inputs: Sequence[Any]) -> torch.Tensor:
        """Return the view of the input in ``inputs``, the inputs of a call."""
        base: torch.Tensor = inputs[self.position]
        values: dict[Any, int] = {}
        for symbol, (position, dim) in self.symbols.items():
            value = inputs[position]
            values[symbol] = value if dim is None else value.shape[dim]
        sizes = [_evaluate(size, values) for size in self.sizes]
        strides = [_evaluate(stride, values) for stride in self.strides]
        offset = base.storage_offset() + _evaluate(self.offset, values)
        return base.as_strided(sizes, strides, offset)


@dataclass(frozen=True)
class Results:
    """The memory that results of a graph share.

    ``views``: position of a result -> the view of an input that it is. ``why_not``: why
    a lowered program cannot return such results; "" if it can.
    """

    views: dict[int, View]
    why_not: str = ""


def results_of(graph: GraphModule) -> Results:
    """Return the memory that results of ``graph`` share, by the fake tensors of Dynamo."""
    placeholders = graph.graph.find_nodes(op="placeholder")
    inputs: list[Any] = [node.meta.get("example_value") for node in placeholders]
    returned: Any = graph.graph.output_node().args[0]
    outputs: list[Any] = [
        node.meta.get("example_value") if isinstance(node, Node) else node
        for node in returned
    ]
    bases = {_memory(value): position for position, value in enumerate(inputs)}
    bases.pop(None, None)
    symbols = _symbols(inputs)
    views: dict[int, View] = {}
    fresh: dict[Any, int] = {}  # memory that the graph made -> a result in it
    for k, value in enumerate(outputs):
        memory = _memory(value)
        if memory in bases:
            view = _view(value, bases[memory], inputs, symbols)
            if view is None:
                text = f"its result {k} is a view of an input with other elements"
                return Results({}, text)
            views[k] = view
        elif memory is not None:
            other = fresh.get(memory)
            if other is not None and not _are_disjoint(outputs[other], value):
                return Results({}, f"its results {other} and {k} share memory")
            fresh[memory] = k
    return Results(views)


def _view(
    value: torch.Tensor, position: int, inputs: Sequence[Any], symbols: dict[Any, Any]
) -> View | None:
    """Return ``value`` as a view of the input at ``position``.

    None if its elements differ from those of the input, for example in dtype.
    """
    base = inputs[position]
    is_marked = value.is_conj() or value.is_neg() or base.is_conj() or base.is_neg()
    if is_marked or value.dtype is not base.dtype:
        return None
    offset = _expression(value.storage_offset()) - _expression(base.storage_offset())
    sizes = tuple(map(_expression, value.shape))
    strides = tuple(map(_expression, value.stride()))
    used = set().union(*(v.free_symbols for v in (*sizes, *strides, offset)))
    if not used <= symbols.keys():
        return None
    return View(position, sizes, strides, offset, {s: symbols[s] for s in used})


def _symbols(inputs: Sequence[Any]) -> dict[Any, tuple[int, int | None]]:
    """Return symbolic size -> the position and dimension of an input with this size."""
    found: dict[Any, tuple[int, int | None]] = {}
    for k, value in enumerate(inputs):
        sizes: dict[int | None, Any] = {}
        if isinstance(value, torch.SymInt):
            sizes = {None: value}
        elif isinstance(value, torch.Tensor):
            sizes = dict(enumerate(value.shape))
        for dimension, size in sizes.items():
            expression = _expression(size)
            if expression.is_Symbol:
                found.setdefault(expression, (k, dimension))
    return found


def _are_disjoint(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two results in the same memory have no element in common.

    False if that is unknown.
    """
    for tensor in (a, b):
        sizes = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
        if any(isinstance(size, torch.SymInt) for size in sizes):
            return False
    if a.dtype is not b.dtype:
        return False
    return not torch.isin(_offsets(a), _offsets(b)).any()


def _offsets(tensor: torch.Tensor) -> torch.Tensor:
    """Return the offsets of all elements of a tensor in its storage."""
    offsets = torch.tensor([int(tensor.storage_offset())])
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        offsets = (offsets[:, None] + torch.arange(size) * stride).flatten()
    return offsets


def _memory(value: Any) -> Any:
    """Return a key that is equal for tensors that share memory; None without memory."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    try:
        return value.untyped_storage()._cdata
    except NotImplementedError:  # a wrapper of other tensors
        return None


def _expression(number: Any) -> Any:
    """Return a size as an expression of symbols."""
    if isinstance(number, torch.SymInt):
        return number.node.expr
    return sympy.Integer(number)


def _evaluate(value: Any, values: dict[Any, int]) -> int:
    """Return the number of an expression, with ``values`` for its symbols."""
    return int(value.xreplace(values)) if values else int(value)
