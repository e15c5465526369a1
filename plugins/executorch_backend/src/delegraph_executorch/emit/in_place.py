"""Write a few rows of a buffer, such as a key-value cache, without copying the buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from delegraph_programs import written_values
from torch.export import ExportedProgram
from torch.fx import Node

from .method_values import TensorValue

aten = torch.ops.aten
INDEX_PUT_KERNEL = "aten::index_put_"


@dataclass(frozen=True)
class InPlace:
    """Calls that write to a buffer's memory.

    ``writes`` maps a call of ``index_put`` to the buffer that it writes to.
    ``unchanged`` maps a copy or permutation before or after such a write to the buffer,
    which is its result without a computation.
    """

    writes: Mapping[Node, TensorValue] = field(default_factory=dict)
    unchanged: Mapping[Node, TensorValue] = field(default_factory=dict)


def find_in_place(
    program: ExportedProgram, states: Mapping[Node, TensorValue]
) -> InPlace:
    """Return the calls of ``index_put`` that can write to the buffer itself.

    Example: ``new = index_put(clone(buffer), ...)``, then ``copy(buffer, new)``. The
    clone and the copy become the buffer.

    Nothing else may read the old value of the buffer. Only calls that export made from
    ``index_copy`` qualify: they replace whole rows along one dimension. The kernel
    refuses negative indices, which other calls may have.

    ``states`` maps the placeholders of written buffers to their values.
    """
    writes: dict[Node, TensorValue] = {}
    unchanged: dict[Node, TensorValue] = {}
    for buffer, last in written_values(program).items():
        if buffer not in states:
            continue
        # Follow the new value back to the write. The calls on the way only copy it.
        # Nothing writes the buffer after them, so their results can be the buffer.
        after: list[Node] = []
        while True:
            args: Any = last.args
            if last.target is aten.copy.default and args[0] is buffer:
                copied = args[1]
            elif _keeps_element_order(last):
                copied = args[0]
            else:
                break
            after.append(last)
            last = copied
        if last.target is not aten.index_put.default or not _copies_rows(last):
            continue
        # Follow the old value from the write back to the buffer. Each call on the way
        # may have one reader only: a second one would read the new value.
        before: list[Node] = []
        reader = last
        source = last.args[0]
        while (
            isinstance(source, Node)
            and _keeps_element_order(source)
            and _reads_alone(reader, source, ())
        ):
            before.append(source)
            reader = source
            source = source.args[0]
        if source is buffer and _reads_alone(reader, buffer, after):
            writes[last] = states[buffer]
            unchanged |= {n: _viewed(states[buffer], n) for n in (*before, *after)}
    return InPlace(writes, unchanged)


def _keeps_element_order(node: Node) -> bool:
    """Return whether a call copies its argument or only moves dimensions of size 1.

    Then its result has the same elements in the same order in memory.
    """
    if node.target is aten.clone.default:
        return True
    if node.target is not aten.permute.default:
        return False
    args: Any = node.args
    source, order = args
    shape = source.meta["val"].shape
    moved = [d % len(shape) for d in order if shape[d] != 1]
    return moved == sorted(moved)


def _copies_rows(write: Node) -> bool:
    """Return whether an ``index_put`` came from ``index_copy`` and copies whole rows."""
    origin = write.meta.get("decomposed_from", ())[-1:]
    if origin != ("aten.index_copy.default",) or len(write.args) > 3:
        return False
    args: Any = torch.fx.node.map_arg(write.args, lambda n: n.meta["val"])
    base, indices, values = args
    used = [k for k, index in enumerate(indices) if index is not None]
    if len(used) != 1 or indices[used[0]].dim() != 1:
        return False
    dim = used[0]
    shape = (*base.shape[:dim], *indices[dim].shape, *base.shape[dim + 1 :])
    return tuple(values.shape) == shape and values.dtype == base.dtype


def _reads_alone(reader: Node, source: Node, others: Sequence[Node]) -> bool:
    """Return whether only ``reader`` reads ``source``, as its first argument.

    The calls in ``others`` may read it, too.
    """
    further: list[Node] = []
    torch.fx.node.map_arg((reader.args[1:], reader.kwargs), further.append)
    if source in further:
        return False
    return all(user is reader or user in others for user in source.users)


def _viewed(buffer: TensorValue, node: Node) -> TensorValue:
    """Return the buffer, or a view of it that has the sizes of a call's result."""
    sizes = tuple(node.meta["val"].shape)
    if sizes == buffer.sizes:
        return buffer
    return TensorValue(buffer.dtype, sizes, buffer.storage)
