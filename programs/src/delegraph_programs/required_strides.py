"""Finds values that must have their recorded strides, and rearranges them.

Kernels on the host return the recorded strides; delegates may return others. Operators
that read memory or its order see the difference: ``as_strided``, random numbers, custom
operators. So do the caller, and delegates that were compiled for the recorded strides.
One scan of the graph finds these values before the first call, so that calls rearrange
no others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from .delegate_protocol import Opaque
from .errors import Unsupported
from .exported_program import output_node, user_inputs
from .memory_overlap import extent
from .operator_schema import is_view, may_be_random, overloads
from .reachable_nodes import reachable
from .source_line import source_of
from .symbolic_sizes import are_static

WINDOWS = overloads("as_strided.default _reshape_alias.default")
"""Views with elements at given places in memory, whatever the strides of the operand."""
COPIES_BY_PLACE = overloads(
    "as_strided_copy.default as_strided_scatter.default _reshape_alias_copy.default"
)
"""Operators that read or write places in memory, as such views do, and return a copy."""
_READ_MEMORY = (
    WINDOWS | COPIES_BY_PLACE | overloads("sym_stride.int sym_storage_offset.default")
)
"""Operators that read the memory, strides or offset of their first operand."""
NEED_PACKED = overloads("view.dtype view_as_complex.default")
"""Views that need adjacent elements in the last dimension, and so refuse some strides.
"""
_VALUES_ONLY = frozenset({"aten", "prims", "quantized_decomposed", "torchao"})
"""Namespaces of operators that ignore strides, except those listed above.

Custom operators may read memory, so they are not listed. Operators of torchao are
listed, because a copy before them would hide quantized operands from backends.
"""


@dataclass(frozen=True)
class Layout:
    """The strides of a tensor, and its storage offset if something may read it.

    ``strides`` is None if they depend on sizes known at run time. The tensor is then
    dense, and ``order`` lists its dimensions, innermost first. ``offset`` is None if
    any offset will do.
    """

    strides: tuple[int, ...] | None
    order: tuple[int, ...] = ()
    offset: int | None = None

    @classmethod
    def of(cls, val: Any, with_offset: bool = False) -> Layout | None:
        """Return the layout of the recorded value ``val``.

        None if it is no strided tensor, or has symbolic strides and is not dense. With
        ``with_offset``, the layout has the offset, unless it is symbolic.
        """
        if not isinstance(val, torch.Tensor) or val.layout is not torch.strided:
            return None
        start = val.storage_offset() if with_offset else None
        offset = start if isinstance(start, int) else None
        if are_static(val.stride()):
            return cls(tuple(val.stride()), offset=offset)
        order = dense_order(val)
        return None if order is None else cls(None, order, offset)

    def strides_for(self, shape: torch.Size) -> tuple[int, ...]:
        """Return the strides for a value of this shape.

        If ``strides`` is None, they are those of a dense tensor with ``order``.
        """
        if self.strides is not None:
            return self.strides
        strides = [0] * len(shape)
        step = 1
        for dim in self.order:
            strides[dim] = step
            step *= max(shape[dim], 1)  # as torch does: a size of 0 counts as 1
        return tuple(strides)


def dense_order(val: torch.Tensor) -> tuple[int, ...] | None:
    """Return the dimensions of a dense tensor, innermost first; None if it has gaps.

    An example is (1, 0) for strides (3, 1). Symbolic sizes are compared by their text,
    because comparing their values would fix them.
    """
    order: list[int] = []
    # the stride of the next dimension: the number of elements inside of it
    step: Any = 1
    for _ in range(val.dim()):
        fitting = [
            d
            for d in range(val.dim())
            if d not in order and str(val.stride(d)) == str(step)
        ]
        if not fitting:
            return None
        # In a dense tensor, at most one dimension that fits has a size other than 1.
        # The dimensions of size 1 come first.
        of_size_1 = [d for d in fitting if str(val.shape[d]) == "1"]
        following = of_size_1[0] if of_size_1 else fitting[-1]
        order.append(following)
        step = step * val.shape[following]
    return tuple(order)


def arrange(value: Any, layout: Layout | None) -> Any:
    """Return ``value``, or a view or copy of it, with the strides of ``layout``.

    The result has the offset of ``layout``, too, unless that is None. It is a copy only
    if elements must move. If ``layout`` is None, ``value`` is returned.
    """
    if layout is None:
        return value
    strides = layout.strides_for(value.shape)
    if value.stride() == strides and (
        layout.offset is None or value.storage_offset() == layout.offset
    ):
        return value
    if layout.offset is None and same_strides(value, strides):
        return value.as_strided(value.shape, strides)
    return _copy_with_strides(value, strides, layout.offset or 0)


def same_strides(value: torch.Tensor, strides: Sequence[int]) -> bool:
    """Return whether a tensor with ``strides`` has each element at the same place.

    Strides of dimensions of size 1 may differ.
    """
    sizes = zip(value.shape, value.stride(), strides, strict=True)
    return not value.numel() or all(
        size == 1 or have == want for size, have, want in sizes
    )


def _copy_with_strides(
    value: torch.Tensor, strides: tuple[int, ...], offset: int
) -> torch.Tensor:
    """Return a copy of ``value`` in new memory, with these strides and this offset.

    With a stride of 0, elements share a place in memory, and must be equal. If those of
    ``value`` differ, as a caller's may, a contiguous copy is returned instead.
    """
    whole = value
    places = extent(value.shape, strides) if value.numel() else 0
    copy = value.new_empty(offset + places).as_strided(value.shape, strides, offset)
    target = copy
    # along a dimension of stride 0, all elements share one place in memory: write it
    # once
    for dim, stride in enumerate(strides):
        if stride == 0 and value.shape[dim]:
            target = target.narrow(dim, 0, 1)
            value = value.narrow(dim, 0, 1)
    target.copy_(value)
    if value.shape != whole.shape and not torch.equal(copy, whole):
        return whole.contiguous()
    return copy


def result_layouts(
    module: GraphModule, state: Collection[Node] = (), outward: bool = False
) -> dict[Node, Layout]:
    """Return the layout of each value that must have its recorded one.

    Delegates and calls with subgraphs may return other strides than the recorded ones.
    Their results need a layout if a reader, a call that depends on strides, depends on
    them. Other calls return other strides only if another kernel replaces the recorded
    one. Their results need a layout if an operator such as ``as_strided`` reads the
    memory of that result itself.

    ``outward``: the graph's outputs count as read. ``state``: the graph's inputs that
    are copies of the program's buffers. Raises Unsupported if an operator reads memory
    that a lowered program does not have (``_check_memory``).
    """
    readers = [n for n in module.graph.nodes if _holds_inside(n, module, sees_layout)]
    ends = [*readers, output_node(module.graph)] if outward else readers
    read = reachable(ends, lambda node: node.all_input_nodes)
    wanted = {n for n in read if _is_opaque_result(n)}
    for reader in readers:
        if reader.target in _READ_MEMORY:
            root = memory_root(reader.all_input_nodes[0])
            _check_memory(reader, root, state)
            if root.op == "call_function":
                wanted.add(root)
    layouts = {n: Layout.of(n.meta.get("val"), with_offset=True) for n in wanted}
    return {n: layout for n, layout in layouts.items() if layout is not None}


def subgraph_layouts(
    owner: Node, subgraph: GraphModule, known: Mapping[Node, Layout]
) -> dict[Node, Layout]:
    """Return ``result_layouts`` of ``subgraph``.

    ``owner``: the ``get_attr`` node that fetches it. ``known``: ``result_layouts`` of
    the graph that ``owner`` is in.
    """
    # The outputs of the subgraph count as read in two cases. In the first case, a
    # result of the call is read: the call, or a node that unpacks the result, has a
    # layout.
    results_are_read = any(
        call in known or any(r in known for r in call.users) for call in owner.users
    )
    # In the second case, a call in the subgraph depends on strides: the outputs of one
    # iteration of a loop are the inputs of the next one.
    strides_are_read = any(
        _holds_inside(n, subgraph, sees_layout) for n in subgraph.graph.nodes
    )
    return result_layouts(subgraph, outward=results_are_read or strides_are_read)


def output_layouts(program: ExportedProgram) -> list[Layout | None]:
    """Return the recorded layout of each output that may get other strides, or None.

    Such an output depends on a delegate or on a call with subgraphs. All others have
    eager's strides anyway.
    """
    dependent: set[Node] = set()
    for node in program.graph.nodes:
        if _is_opaque(node) or not dependent.isdisjoint(node.all_input_nodes):
            dependent.add(node)
    values: Any = output_node(program.graph).args[0]
    return [
        Layout.of(v.meta.get("val")) if isinstance(v, Node) and v in dependent else None
        for v in values
    ]


def pinned_inputs(program: ExportedProgram) -> dict[Node, Node]:
    """Return the inputs that must have their recorded strides, each with its reader.

    The reader (``as_strided``, or a delegate or subgraph with such an operator) reads
    the memory of a value that is computed from the input. Eager derives the strides of
    that value from the strides of the input. A lowered program uses the recorded
    strides, or those of a delegate. Operators that read the memory of an input or its
    view directly are no such readers: eager reads the same memory.
    """
    module = program.graph_module
    inputs = set(user_inputs(program))
    pinned: dict[Node, Node] = {}
    seen: set[tuple[Node, bool]] = set()
    # Walk from each reader of memory to the inputs.
    waiting: list[_Step] = []
    for reader in module.graph.nodes:
        if _holds_inside(reader, module, lambda node: node.target in _READ_MEMORY):
            opaque = _is_opaque(reader)
            operands = reader.all_input_nodes
            read = operands if opaque else operands[:1]
            waiting += [_Step(operand, reader, opaque) for operand in read]
    while waiting:
        node, reader, computed = waiting.pop()
        if (node, computed) in seen:
            continue
        seen.add((node, computed))
        if node in inputs and computed:
            pinned.setdefault(node, reader)
        computed = computed or not is_view(node)
        waiting += [_Step(n, reader, computed) for n in node.all_input_nodes]
    return pinned


class _Step(NamedTuple):
    """A node that the walk of ``pinned_inputs`` reaches from ``reader``.

    ``computed``: the memory that is read may belong to a value computed from ``node``.
    That is so if a call between the two is no view, or if the reader is a delegate or
    has a subgraph.
    """

    node: Node
    reader: Node
    computed: bool


def _holds_inside(
    node: Node, module: GraphModule, predicate: Callable[[Node], bool]
) -> bool:
    """Return whether ``predicate`` holds for ``node`` or for a node inside of it.

    Nodes inside are those of its subgraphs or its delegate, at any depth. ``module``
    owns the graph of ``node``.
    """
    if predicate(node):
        return True
    if not _is_opaque(node):
        return False
    # ``get_attr`` operands fetch the subgraphs or the delegate from ``module``
    for owner in node.all_input_nodes:
        if owner.op != "get_attr":
            continue
        fetched = getattr(module, str(owner.target), None)
        inner = fetched.inner if isinstance(fetched, Opaque) else fetched
        if isinstance(inner, GraphModule) and any(
            _holds_inside(n, inner, predicate) for n in inner.graph.nodes
        ):
            return True
    return False


def _is_opaque(node: Node) -> bool:
    """Return whether the node calls a delegate, or a subgraph that may contain one."""
    return isinstance(node.target, HigherOrderOperator)


def _is_opaque_result(node: Node) -> bool:
    """Return whether the node is a tensor result of a delegate or of subgraphs."""
    if _is_opaque(node):
        return isinstance(node.meta.get("val"), torch.Tensor)
    return node.op == "call_function" and any(map(_is_opaque, node.all_input_nodes))


def sees_layout(node: Node) -> bool:
    """Return whether the result of an operator depends on the strides of its operands.

    Random numbers do, because kernels draw them in the order of memory.
    """
    if not isinstance(node.target, OpOverload):
        return False
    if node.target in _READ_MEMORY or node.target in NEED_PACKED:
        return True
    return may_be_random(node.target) or node.target.namespace not in _VALUES_ONLY


def memory_root(value: Node) -> Node:
    """Return the tensor that ``value`` is a view of, or ``value`` itself.

    The schemas of the calls decide which of them return views.
    """
    while is_view(value):
        value = value.all_input_nodes[0]
    return value


def _check_memory(reader: Node, root: Node, state: Collection[Node]) -> None:
    """Raise Unsupported if ``reader`` reads memory outside the elements of ``root``.

    In a lowered program, results of delegates and buffers (``state``) have no other
    memory. Between the elements of a computed tensor with gaps, eager may have copied
    other values, which the recorded value does not show.
    """
    val = root.meta["val"]
    has_gaps = root.op == "call_function" and dense_order(val) is None
    lacks_other_memory = root in state or _is_opaque_result(root) or has_gaps
    if lacks_other_memory and not _is_covered(val, reader.meta["val"]):
        text = (
            f"{reader.target} reads memory around the elements of {root.name}; a lowered"
            " program has no such memory"
        )
        hint = f"index the tensor instead, or leave {root.name} to the host"
        raise Unsupported("unsupported", text, reader, source_of(reader), hint)


def _is_covered(root: torch.Tensor, view: Any) -> bool:
    """Return whether ``view`` shows only elements of the tensor ``root``.

    ``view`` is a view of the memory of ``root``. True if ``view`` is no tensor; False
    if a size, stride or offset is symbolic.
    """
    if not isinstance(view, torch.Tensor):
        return True  # the operator returns a stride or an offset
    for tensor in (root, view):
        if not are_static((*tensor.shape, *tensor.stride(), tensor.storage_offset())):
            return False
    if 0 in view.shape:
        return True  # it shows no element
    # mark the elements of ``root`` in an array that models the memory, and look whether
    # ``view`` shows others
    ends = (t.storage_offset() + extent(t.shape, t.stride()) for t in (root, view))
    memory = torch.zeros(max(ends), dtype=torch.bool)
    # the elements of an expanded dimension share one place: mark it once
    shape = [
        1 if stride == 0 else size
        for size, stride in zip(root.shape, root.stride(), strict=True)
    ]
    memory.as_strided(shape, root.stride(), root.storage_offset()).fill_(True)
    shown = memory.as_strided(view.shape, view.stride(), view.storage_offset())
    return bool(shown.all())
