"""Writes of a few elements to a buffer, such as a cache: in its own memory, and not by
way of a copy of all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from delegraph_programs import written_values
from torch.export import ExportedProgram
from torch.fx import Node

from .values import TensorValue

aten = torch.ops.aten
KERNEL = "aten::index_put_"


@dataclass(frozen=True)
class InPlace:
    """``writes``: a call of ``index_put`` -> the buffer that it writes into.

    ``same``: call whose result is the buffer, before or after that write -> the buffer.
    """

    writes: Mapping[Node, TensorValue] = field(default_factory=dict)
    same: Mapping[Node, TensorValue] = field(default_factory=dict)


def find_in_place(
    program: ExportedProgram, states: Mapping[Node, TensorValue]
) -> InPlace:
    """The calls of ``index_put`` that may write into the buffer itself, since nothing
    else reads its old value.

    They are what ``index_copy`` is decomposed to, which the kernel computes: rows along
    one dimension, each whole, by numbers from 0. It refuses negative ones, which an
    ``index_put`` of the model may have.

    ``states``: the placeholders of buffers that have memory of the method's.
    """
    writes: dict[Node, TensorValue] = {}
    same: dict[Node, TensorValue] = {}
    for buffer, last in written_values(program).items():
        if buffer not in states:
            continue
        # what has the new value: nothing writes it any more, so all of these may be in
        # the buffer's memory
        after: list[Node] = []
        while (
            last.target is aten.copy.default and last.args[0] is buffer
        ) or _keeps_elements(last):
            after.append(last)
            copied: Any = (
                last.args[1] if last.target is aten.copy.default else last.args[0]
            )
            last = copied
        if last.target is not aten.index_put.default or not _copies_rows(last):
            continue
        # what has the old value: read once, so that neither a view nor another call
        # sees what the write changes
        before: list[Node] = []
        reader = last
        source = last.args[0]
        while (
            isinstance(source, Node)
            and _keeps_elements(source)
            and _reads_alone(reader, source, ())
        ):
            before.append(source)
            reader = source
            source = source.args[0]
        if source is buffer and _reads_alone(reader, buffer, after):
            writes[last] = states[buffer]
            same |= {n: _viewed(states[buffer], n) for n in (*before, *after)}
    return InPlace(writes, same)


def _keeps_elements(node: Node) -> bool:
    """Whether a call returns the elements of its argument in their order: a copy, or a
    move of sizes of 1.
    """
    if node.target is aten.clone.default:
        return True
    if node.target is not aten.permute.default:
        return False
    source, order = _arguments(node)
    shape = source.meta["val"].shape
    moved = [d % len(shape) for d in order if shape[d] != 1]
    return moved == sorted(moved)


def _copies_rows(write: Node) -> bool:
    """Whether an ``index_put`` does what ``index_copy`` does, whose rows have the sizes
    of those that they replace.
    """
    if (
        write.meta.get("decomposed_from", ())[-1:] != ("aten.index_copy.default",)
        or len(write.args) > 3
    ):
        return False
    base, indices, values = (
        torch.fx.node.map_arg(a, lambda n: n.meta["val"]) for a in _arguments(write)
    )
    (dim, rows), *more = [
        (k, index) for k, index in enumerate(indices) if index is not None
    ]
    wanted = (*base.shape[:dim], *rows.shape, *base.shape[dim + 1 :])
    return (
        not more
        and rows.dim() == 1
        and tuple(values.shape) == wanted
        and values.dtype == base.dtype
    )


def _arguments(node: Node) -> Any:
    return node.args


def _reads_alone(reader: Node, source: Node, but: list[Node] | tuple[()]) -> bool:
    """Whether ``reader`` alone reads ``source``, as its first argument and nowhere
    else; calls in ``but`` may, too.
    """
    others: list[Node] = []
    torch.fx.node.map_arg((reader.args[1:], reader.kwargs), others.append)
    return source not in others and all(
        user is reader or user in but for user in source.users
    )


def _viewed(buffer: TensorValue, node: Node) -> TensorValue:
    """The buffer as the result of a call, which may have other sizes."""
    sizes = tuple(node.meta["val"].shape)
    return (
        buffer
        if sizes == buffer.sizes
        else TensorValue(buffer.dtype, sizes, buffer.storage)
    )
