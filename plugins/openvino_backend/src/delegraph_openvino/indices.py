"""Ranges of inputs that are indices: OpenVINO reads zeros or other rows for an index
for which eager raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from delegraph_programs import bound_arguments, user_inputs
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
"""Calls with an index along ``dim``, which counts from 0 only."""
_LISTS = (aten.index.Tensor, aten.index_put.default)
"""Calls with a list of indices, one for each axis, which may be negative."""
_SAME_ELEMENTS = {
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
_CASTS = (aten.to.dtype, aten._to_copy.default)


def mark_indices(program: ExportedProgram) -> None:
    """Mark inputs whose elements are indices with the range for which eager does not
    raise.

    Each call of the lowered program is checked. Indices that the program computes, and
    axes of dynamic size, are not.
    """
    inputs = set(user_inputs(program))
    for node in program.graph.nodes:
        for index, low, high in _ranges(node):
            source = _source(index)
            if source in inputs:
                given = source.meta.get(INDEXED, [low, high])
                source.meta[INDEXED] = [max(low, given[0]), min(high, given[1])]


def _ranges(node: Node) -> Iterator[tuple[Any, int, int]]:
    """Yield each index of a call with the lowest and highest element that eager takes."""
    if node.target is aten.embedding.default:
        arguments = bound_arguments(node)
        yield from _along(
            arguments["indices"], arguments["weight"].meta["val"].shape[0], False
        )
    elif node.target in _AXIS:
        arguments = bound_arguments(node)
        shape = arguments["self"].meta["val"].shape
        if shape:
            yield from _along(arguments["index"], shape[arguments["dim"]], False)
    elif node.target is aten.take.default:
        arguments = bound_arguments(node)
        yield from _along(
            arguments["index"], arguments["self"].meta["val"].numel(), True
        )
    elif node.target in _LISTS:
        arguments = bound_arguments(node)
        indices = arguments["indices"]
        shape = arguments["self"].meta["val"].shape
        if not any(_is_mask(index) for index in indices):
            for index, size in zip(indices, shape, strict=False):
                yield from _along(index, size, True)


def _along(index: Any, size: Any, is_signed: bool) -> Iterator[tuple[Any, int, int]]:
    """Yield the range of ``index`` along an axis of ``size``, if that is known."""
    if isinstance(index, Node) and isinstance(size, int) and size > 0:
        yield index, -size if is_signed else 0, size - 1


def _is_mask(index: Any) -> bool:
    return isinstance(index, Node) and index.meta["val"].dtype in (
        torch.bool,
        torch.uint8,
    )


def _source(index: Node) -> Node:
    """Return the tensor with all elements of which ``index`` is a view or a cast to a
    type that holds them.
    """
    while index.op == "call_function" and index.args:
        before: Any = index.args[0]
        if index.target in _CASTS:
            types = [node.meta["val"].dtype for node in (before, index)]
            if types[1] not in (torch.int32, torch.int64) or types[0].is_floating_point:
                return index
            if types[0].itemsize > types[1].itemsize:
                return index
        elif index.target not in _SAME_ELEMENTS:
            return index
        index = before
    return index
