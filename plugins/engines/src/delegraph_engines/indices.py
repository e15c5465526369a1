"""Marks values that are indices with their valid ranges.

For an index out of range, engines read zeros or other rows, and eager raises an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from delegraph_programs import bound_arguments
from delegraph_programs.call_names import INDEXED
from torch.export import ExportedProgram
from torch.fx import Node

aten = torch.ops.aten
_AXIS = (
    aten.index_select.default,
    aten.gather.default,
    aten.scatter.src,
    aten.scatter.value,
)
"""Calls with an index along ``dim``, which is never negative."""
_LISTS = (aten.index.Tensor, aten.index_put.default)
"""Calls with a list of indices, one for each axis, which may be negative."""
_KEEP_ELEMENTS = {
    aten.view.default,
    aten.reshape.default,
    aten.flatten.using_ints,
    aten.squeeze.dim,
    aten.unsqueeze.default,
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
}
"""Operators with a result that has all elements of their first argument, and no others.
"""
_CASTS = (aten.to.dtype, aten._to_copy.default)


def mark_indices(program: ExportedProgram) -> None:
    """Mark indices with the range that eager accepts.

    Inputs are checked at each call of the lowered program. An index that the host
    computes is checked if it crosses the border of a delegate in another type.
    Axes of dynamic size are not checked.
    """
    for node in program.graph.nodes:
        for index in _indices_of(node):
            source = _source(index.node)
            # another call may have marked it with another range: both must hold
            low, high = source.meta.get(INDEXED, [index.low, index.high])
            source.meta[INDEXED] = [max(index.low, low), min(index.high, high)]


class _Index(NamedTuple):
    """An index, with the lowest and highest element that eager accepts."""

    node: Node
    low: int
    high: int


def _indices_of(node: Node) -> Iterator[_Index]:
    """Yield the indices of a call with their ranges."""
    if node.target is aten.embedding.default:
        arguments = bound_arguments(node)
        rows = arguments["weight"].meta["val"].shape[0]
        yield from _along(arguments["indices"], rows, is_signed=False)
    elif node.target in _AXIS:
        arguments = bound_arguments(node)
        shape = arguments["self"].meta["val"].shape
        if shape:
            size = shape[arguments["dim"]]
            yield from _along(arguments["index"], size, is_signed=False)
    elif node.target is aten.take.default:
        arguments = bound_arguments(node)
        count = arguments["self"].meta["val"].numel()
        yield from _along(arguments["index"], count, is_signed=True)
    elif node.target in _LISTS:
        arguments = bound_arguments(node)
        indices = arguments["indices"]
        shape = arguments["self"].meta["val"].shape
        if not any(_is_mask(index) for index in indices):
            for index, size in zip(indices, shape, strict=False):
                yield from _along(index, size, is_signed=True)


def _along(index: Any, size: Any, is_signed: bool) -> Iterator[_Index]:
    """Yield ``index`` with its range along an axis of ``size``, if that is known.

    ``is_signed``: whether negative indices count from the end of the axis.
    """
    if isinstance(index, Node) and isinstance(size, int) and size > 0:
        yield _Index(index, -size if is_signed else 0, size - 1)


def _is_mask(index: Any) -> bool:
    """Return whether an index is a mask of truth values, which eager stores in 8 bits."""
    return isinstance(index, Node) and index.meta["val"].dtype in (
        torch.bool,
        torch.uint8,
    )


def _source(index: Node) -> Node:
    """Return the first tensor with the same elements as ``index``.

    It follows views with all elements, and casts between integers that lose no values.
    """
    while index.op == "call_function" and index.args:
        before: Any = index.args[0]
        if index.target in _CASTS:
            dtype = before.meta["val"].dtype
            new_dtype = index.meta["val"].dtype
            if new_dtype not in (torch.int32, torch.int64) or dtype.is_floating_point:
                return index
            if dtype.itemsize > new_dtype.itemsize:
                return index
        elif index.target not in _KEEP_ELEMENTS:
            return index
        index = before
    return index
