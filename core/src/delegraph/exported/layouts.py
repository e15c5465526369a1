"""Values that must have the strides with which they were recorded, and how they get them.

A graph was recorded with certain strides. Kernels on the host keep them; delegates may return others. That shows in
operators that read memory, or its order (``as_strided``, random numbers, custom operators), in delegates that were
compiled for the recorded strides, and in what the caller gets. One scan of the graph finds these values before the
first call, so that calls rearrange these and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from ..errors import Unsupported
from ..exported_program import output_node, user_inputs
from ..source import source_of
from .node_sets import reachable
from .opaque import Opaque
from .schema import is_view, overloads

aten = torch.ops.aten
WINDOWS = overloads("as_strided.default _reshape_alias.default")
"""Views that show memory by place."""
COPIES_BY_PLACE = overloads("as_strided_copy.default as_strided_scatter.default _reshape_alias_copy.default")
"""Operators that read memory by place, as such views do, and return a tensor of their own."""
READ_MEMORY = WINDOWS | COPIES_BY_PLACE | overloads("sym_stride.int sym_storage_offset.default")
"""Operators whose results depend on the strides of their operands."""
NEED_PACKED = overloads("view.dtype view_as_complex.default")
"""Views that need the elements of the last dimension side by side in memory, and so refuse some strides."""
_VALUES_ONLY = frozenset({"aten", "prims", "quantized_decomposed"})
"""Namespaces whose other operators compute the same for all strides; operators of users may read memory."""


@dataclass(frozen=True)
class Layout:
    """Strides, and the offset in memory if something may read it.

    ``strides`` is None if they depend on sizes known at run time. The value is then dense, and ``order`` lists its
    dimensions, innermost first.
    """

    strides: tuple[int, ...] | None
    order: tuple[int, ...] = ()
    offset: int | None = None

    @classmethod
    def of(cls, val: Any, with_offset: bool = False) -> Layout | None:
        """The layout of a recorded value. None if it is no strided tensor, or has symbolic strides and is not dense."""
        if not isinstance(val, torch.Tensor) or val.layout is not torch.strided:
            return None
        start = val.storage_offset() if with_offset else None
        offset = start if isinstance(start, int) else None
        if all(isinstance(s, int) for s in val.stride()):
            return cls(tuple(val.stride()), offset=offset)
        order = dense_order(val)
        return None if order is None else cls(None, order, offset)

    def strides_for(self, shape: torch.Size) -> tuple[int, ...]:
        """The strides for a value of this shape."""
        if self.strides is not None:
            return self.strides
        strides, step = [0] * len(shape), 1
        for dim in self.order:
            strides[dim] = step
            step *= max(shape[dim], 1)
        return tuple(strides)


def dense_order(val: torch.Tensor) -> tuple[int, ...] | None:
    """The dimensions of a dense tensor, innermost first; None if the tensor is not dense.

    Symbolic sizes are compared by their text, because comparing their values would fix them.
    """
    order: list[int] = []
    step: Any = 1
    for _ in range(val.dim()):
        fitting = [d for d in range(val.dim()) if d not in order and str(val.stride(d)) == str(step)]
        if not fitting:
            return None
        # dimensions of size 1 may have the same stride as the next one: they come first
        order.append(next((d for d in fitting if str(val.shape[d]) == "1"), fitting[-1]))
        step = step * val.shape[order[-1]]
    return tuple(order)


def arrange(value: Any, layout: Layout) -> Any:
    """``value`` if it has the layout, else a copy that has."""
    strides = layout.strides if layout.strides is not None else layout.strides_for(value.shape)
    if value.stride() == strides and (layout.offset is None or value.storage_offset() == layout.offset):
        return value
    # only strides of dimensions of one element differ: another view of the same memory will do
    if layout.offset is None and same_strides(value, strides):
        return value.as_strided(value.shape, strides)
    return _copy_with_strides(value, strides, layout.offset or 0)


def same_strides(value: torch.Tensor, strides: Sequence[int]) -> bool:
    """Whether ``strides`` put every element where it is; the stride of a dimension of one element does not matter."""
    sizes = zip(value.shape, value.stride(), strides, strict=True)
    return not value.numel() or all(size == 1 or have == want for size, have, want in sizes)


def _copy_with_strides(value: torch.Tensor, strides: tuple[int, ...], offset: int) -> torch.Tensor:
    """A copy of ``value`` in new memory, with these strides and this offset."""
    extent = 1 + sum((size - 1) * s for size, s in zip(value.shape, strides, strict=True)) if value.numel() else 0
    copy = value.new_empty(offset + extent).as_strided(value.shape, strides, offset)
    target = copy
    # along a dimension of stride 0, all elements share one place in memory: write it once
    for dim in (d for d, s in enumerate(strides) if s == 0 and value.shape[d]):
        target, value = target.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
    target.copy_(value)
    return copy


def result_layouts(module: GraphModule, state: Collection[Node] = (), outward: bool = False) -> dict[Node, Layout]:
    """The recorded layouts of results of delegates, and of calls with subgraphs, whose strides something reads.

    Also those of values that the host computes and that ``as_strided`` or the like reads: a kernel that replaces the
    recorded one may choose other strides. ``outward``: the graph's outputs count as read. ``state``: inputs that are
    copies of the program's buffers. Raises Unsupported if an operator reads memory that is neither in a result nor in a
    buffer.
    """
    readers = [n for n in module.graph.nodes if _reads(n, module, sees_layout)]
    seen = reachable([*readers, *([output_node(module.graph)] if outward else [])], lambda node: node.all_input_nodes)
    roots = {n: memory_root(n.all_input_nodes[0]) for n in readers if n.target in READ_MEMORY}
    wanted = {*(n for n in seen if _is_opaque_result(n)), *(r for r in roots.values() if r.op == "call_function")}
    for reader, root in roots.items():
        _check_memory(reader, root, state)
    layouts = {n: Layout.of(n.meta.get("val"), with_offset=True) for n in wanted}
    return {n: layout for n, layout in layouts.items() if layout is not None}


def subgraph_layouts(owner: Node, subgraph: GraphModule, known: Mapping[Node, Layout]) -> dict[Node, Layout]:
    """``result_layouts`` of a subgraph that ``owner`` fetches. ``known`` are those of the graph around it."""
    # Its outputs are read if the call's results are; and in a loop they are the next round's inputs, which may be read.
    calls = [u for u in owner.users if u in known or any(r in known for r in u.users)]
    outward = bool(calls) or any(_reads(n, subgraph, sees_layout) for n in subgraph.graph.nodes)
    return result_layouts(subgraph, outward=outward)


def output_layouts(program: ExportedProgram) -> list[Layout | None]:
    """The layouts of outputs that delegates had a part in; None for the others, which have eager's anyway."""
    touched: set[Node] = set()
    for node in program.graph.nodes:
        if _is_opaque(node) or not touched.isdisjoint(node.all_input_nodes):
            touched.add(node)
    values: Any = output_node(program.graph).args[0]
    return [Layout.of(v.meta.get("val")) if isinstance(v, Node) and v in touched else None for v in values]


def pinned_inputs(program: ExportedProgram) -> dict[Node, Node]:
    """Inputs that must come with their recorded strides for results to be right -> the operator that depends on them.

    An operator that reads an input, or a view of it, reads what it would read in eager, whatever the strides. One that
    reads a value computed from the input does not: that value has recorded strides, or those that a delegate returns.
    """
    module, inputs = program.graph_module, set(user_inputs(program))
    pinned: dict[Node, Node] = {}
    seen: set[tuple[Node, bool]] = set()
    waiting = [
        (given, reader, _is_opaque(reader))
        for reader in module.graph.nodes
        if _reads(reader, module, lambda node: node.target in READ_MEMORY)
        for given in (reader.all_input_nodes if _is_opaque(reader) else reader.all_input_nodes[:1])
    ]
    while waiting:
        node, reader, computed = waiting.pop()
        if (node, computed) not in seen:
            seen.add((node, computed))
            if node in inputs and computed:
                pinned.setdefault(node, reader)
            waiting += [(given, reader, computed or not is_view(node)) for given in node.all_input_nodes]
    return pinned


def _reads(node: Node, module: GraphModule, predicate: Callable[[Node], bool]) -> bool:
    """Whether a call satisfies ``predicate``, or a call in its subgraphs or in its delegate does."""
    if predicate(node):
        return True
    for owner in node.all_input_nodes if _is_opaque(node) else ():
        held = getattr(module, str(owner.target), None) if owner.op == "get_attr" else None
        inner = held.inner if isinstance(held, Opaque) else held
        if isinstance(inner, GraphModule) and any(_reads(n, inner, predicate) for n in inner.graph.nodes):
            return True
    return False


def _is_opaque(node: Node) -> bool:
    """Whether a delegate, or a subgraph that may contain one, computes the node."""
    return isinstance(node.target, HigherOrderOperator)


def _is_opaque_result(node: Node) -> bool:
    """Whether the node is a result of such a call: its only one, or one that is unpacked."""
    single = _is_opaque(node) and isinstance(node.meta.get("val"), torch.Tensor)
    return single or (node.op == "call_function" and any(map(_is_opaque, node.all_input_nodes)))


def sees_layout(node: Node) -> bool:
    """Whether the result of an operator depends on strides.

    Random numbers do: they are drawn in the order of memory.
    """
    if not isinstance(node.target, OpOverload):
        return False
    if node.target in READ_MEMORY or node.target in NEED_PACKED:
        return True
    return torch.Tag.nondeterministic_seeded in node.target.tags or node.target.namespace not in _VALUES_ONLY


def memory_root(value: Node) -> Node:
    """The value that ``value`` is a view of, as far as the graph shows; ``value`` itself if it is no view."""
    while is_view(value):
        value = value.all_input_nodes[0]
    return value


def _check_memory(reader: Node, root: Node, state: Collection[Node]) -> None:
    """Raise Unsupported if ``reader`` reads memory around the elements of ``root``, which a delegate does not return.

    Some kernels also copy the memory around their operands, which their recorded results do not tell.
    """
    has_gaps = root.op == "call_function" and dense_order(root.meta["val"]) is None
    if (root in state or _is_opaque_result(root) or has_gaps) and not _is_covered(root.meta["val"], reader.meta["val"]):
        text = f"{reader.target} reads memory around {root.name}, which is not there in a lowered program"
        hint = "index the tensor instead, or leave what it is a view of to the host"
        raise Unsupported("unsupported", text, reader, source_of(reader), hint)


def _is_covered(written: torch.Tensor, read: Any) -> bool:
    """Whether all memory that the view ``read`` shows belongs to elements of the tensor ``written``."""
    places = [(v.shape, v.stride(), v.storage_offset()) for v in (written, read) if isinstance(v, torch.Tensor)]
    numbers = [n for shape, strides, offset in places for n in (*shape, *strides, offset)]
    if len(places) < 2:
        return True  # ``read`` is no tensor but a stride or an offset
    if not all(isinstance(n, int) for n in numbers):
        return False
    if 0 in places[1][0]:
        return True
    extents = [o + 1 + sum((d - 1) * s for d, s in zip(shape, strides, strict=True)) for shape, strides, o in places]
    memory = torch.zeros(max(extents), dtype=torch.bool)
    shape, strides, offset = places[0]
    once = [1 if s == 0 else d for d, s in zip(shape, strides, strict=True)]
    memory.as_strided(once, strides, offset).fill_(True)
    return bool(memory.as_strided(*places[1]).all())
