"""Finds values that must have their recorded strides, and rearranges them.

Kernels on the host return the recorded strides; delegates may return others. This is
visible to operators that read memory or its order (``as_strided``, random numbers,
custom operators). Delegates compiled for the recorded strides and the caller see it,
too. One scan of the graph finds these values before the first call, so that calls
rearrange no others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from .delegate_protocol import Opaque
from .errors import Unsupported
from .exported_program import output_node, user_inputs
from .operator_schema import is_view, overloads
from .reachable_nodes import reachable
from .source_line import source_of

aten = torch.ops.aten
WINDOWS = overloads("as_strided.default _reshape_alias.default")
"""Views that show memory by place."""
COPIES_BY_PLACE = overloads(
    "as_strided_copy.default as_strided_scatter.default _reshape_alias_copy.default"
)
"""Operators that read memory by place, as such views do, and return a new tensor."""
READ_MEMORY = (
    WINDOWS | COPIES_BY_PLACE | overloads("sym_stride.int sym_storage_offset.default")
)
"""Operators with results that depend on the strides of their operands."""
NEED_PACKED = overloads("view.dtype view_as_complex.default")
"""Views that need adjacent elements in the last dimension, and so refuse some strides.
"""
_VALUES_ONLY = frozenset({"aten", "prims", "quantized_decomposed", "torchao"})
"""Namespaces of operators that ignore strides, except those listed above.

Custom operators may read memory. Copies before operators of torchao would hide from
backends that a layer has quantized operands.
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
        """Return the layout of the recorded value ``val``; None if it is no strided
        tensor, or is symbolic and not dense.

        ``offset`` is recorded if ``with_offset`` is set and the offset is not symbolic.
        """
        if not isinstance(val, torch.Tensor) or val.layout is not torch.strided:
            return None
        start = val.storage_offset() if with_offset else None
        offset = start if isinstance(start, int) else None
        if all(isinstance(s, int) for s in val.stride()):
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
    """Return the dimensions of a dense tensor, innermost first; None if the tensor is
    not dense.

    Symbolic sizes are compared by their text, because comparing their values would fix
    them.
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


def arrange(value: Any, layout: Layout) -> Any:
    """Return ``value`` with the strides of ``layout``, and its offset unless that is
    None.

    Returns ``value`` itself or a view of its memory where that is possible, else a
    copy.
    """
    strides = layout.strides_for(value.shape)
    if value.stride() == strides and (
        layout.offset is None or value.storage_offset() == layout.offset
    ):
        return value
    # only strides of dimensions of size 1 differ: they move no element, so a view of
    # the same memory will do
    if layout.offset is None and same_strides(value, strides):
        return value.as_strided(value.shape, strides)
    return _copy_with_strides(value, strides, layout.offset or 0)


def same_strides(value: torch.Tensor, strides: Sequence[int]) -> bool:
    """Return whether ``strides`` move no element; dimensions of size 1 do not matter."""
    sizes = zip(value.shape, value.stride(), strides, strict=True)
    return not value.numel() or all(
        size == 1 or have == want for size, have, want in sizes
    )


def _copy_with_strides(
    value: torch.Tensor, strides: tuple[int, ...], offset: int
) -> torch.Tensor:
    """Return a copy of ``value`` in new memory, with these strides and this offset.

    Recorded elements that share memory are equal. If those of ``value`` differ, as a
    caller's may, it is made dense.
    """
    whole = value
    extent = 0  # how many places in memory the elements span, gaps included
    if value.numel():
        extent = 1 + sum(
            (size - 1) * stride
            for size, stride in zip(value.shape, strides, strict=True)
        )
    copy = value.new_empty(offset + extent).as_strided(value.shape, strides, offset)
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
    """Return the required layout of each value that a stride-dependent call reads.

    There are two kinds. Delegates and calls with subgraphs may return other strides
    than the recorded ones. Their results need a layout if a reader depends on them. Any
    other call may do so if another kernel replaces the recorded one. Its result needs a
    layout if an operator such as ``as_strided`` reads the memory of that result itself.

    ``outward``: the graph's outputs count as read. ``state``: the graph's inputs that
    are copies of the program's buffers. Raises Unsupported if an operator reads memory
    that a lowered program does not have (``_check_memory``).
    """
    readers = [n for n in module.graph.nodes if _holds_inside(n, module, sees_layout)]
    ends = [*readers, output_node(module.graph)] if outward else readers
    # every value on which a reader depends
    read = reachable(ends, lambda node: node.all_input_nodes)
    wanted = {n for n in read if _is_opaque_result(n)}  # the first kind
    for reader in readers:
        if reader.target in READ_MEMORY:
            root = memory_root(reader.all_input_nodes[0])
            _check_memory(reader, root, state)
            if root.op == "call_function":
                wanted.add(root)  # the second kind
    layouts = {n: Layout.of(n.meta.get("val"), with_offset=True) for n in wanted}
    return {n: layout for n, layout in layouts.items() if layout is not None}


def subgraph_layouts(
    owner: Node, subgraph: GraphModule, known: Mapping[Node, Layout]
) -> dict[Node, Layout]:
    """Return ``result_layouts`` of ``subgraph``, which the ``get_attr`` node ``owner``
    fetches.

    ``known``: ``result_layouts`` of the graph that ``owner`` is in.
    """
    # If the results of a call are read, the outputs of its subgraph count as read. The
    # call, or a node that unpacks one of its results, then has a layout in ``known``.
    results_are_read = any(
        call in known or any(r in known for r in call.users) for call in owner.users
    )
    # If a call in the subgraph depends on strides, they count as well: the outputs of
    # one iteration of a loop are the inputs of the next.
    strides_are_read = any(
        _holds_inside(n, subgraph, sees_layout) for n in subgraph.graph.nodes
    )
    return result_layouts(subgraph, outward=results_are_read or strides_are_read)


def output_layouts(program: ExportedProgram) -> list[Layout | None]:
    """Return the recorded layout of each output that depends on a delegate or on a call
    with subgraphs.

    None for other outputs, which have eager's strides anyway, and for outputs that are
    no strided tensors.
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
    # Walk from each reader of memory to the inputs. ``waiting``: (node that the walk
    # has reached, reader, computed). ``computed``: the memory that is read may belong
    # to a computed value. That is so if a call between node and reader is no view, or
    # if the reader is a delegate or has a subgraph.
    waiting: list[tuple[Node, Node, bool]] = []
    for reader in module.graph.nodes:
        if _holds_inside(reader, module, lambda node: node.target in READ_MEMORY):
            opaque = _is_opaque(reader)
            operands = reader.all_input_nodes
            waiting += [(n, reader, opaque) for n in operands[: None if opaque else 1]]
    while waiting:
        node, reader, computed = waiting.pop()
        if (node, computed) not in seen:
            seen.add((node, computed))
            if node in inputs and computed:
                pinned.setdefault(node, reader)
            waiting += [
                (operand, reader, computed or not is_view(node))
                for operand in node.all_input_nodes
            ]
    return pinned


def _holds_inside(
    node: Node, module: GraphModule, predicate: Callable[[Node], bool]
) -> bool:
    """Return whether ``predicate`` holds for ``node``, or for a node of its subgraphs or
    of its delegate.

    ``module`` owns the graph of ``node``.
    """
    if predicate(node):
        return True
    # the subgraphs of a call, or its delegate, are attributes of ``module``; nodes
    # among its operands fetch them
    for owner in node.all_input_nodes if _is_opaque(node) else ():
        fetched = (
            getattr(module, str(owner.target), None) if owner.op == "get_attr" else None
        )
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
    if node.target in READ_MEMORY or node.target in NEED_PACKED:
        return True
    return (
        torch.Tag.nondeterministic_seeded in node.target.tags
        or node.target.namespace not in _VALUES_ONLY
    )


def memory_root(value: Node) -> Node:
    """Return the tensor that ``value`` is a view of, by schemas, or ``value`` itself."""
    while is_view(value):
        value = value.all_input_nodes[0]
    return value


def _check_memory(reader: Node, root: Node, state: Collection[Node]) -> None:
    """Raise Unsupported if ``reader`` reads memory outside the elements of ``root``.

    In a lowered program, results of delegates and buffers (``state``) have no other
    memory. Between the elements of a computed tensor with gaps, eager may have copied
    other values, which the recorded value does not show.
    """
    has_gaps = root.op == "call_function" and dense_order(root.meta["val"]) is None
    if (root in state or _is_opaque_result(root) or has_gaps) and not _is_covered(
        root.meta["val"], reader.meta["val"]
    ):
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
        numbers = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
        if not all(isinstance(n, int) for n in numbers):
            return False
    if 0 in view.shape:
        return True  # it shows no element
    # mark the elements of ``root`` in an array that models the memory, and look whether
    # ``view`` shows others
    memory = torch.zeros(
        max(_end_in_memory(root), _end_in_memory(view)), dtype=torch.bool
    )
    # the elements of an expanded dimension share one place: mark it once
    shape = [
        1 if stride == 0 else size
        for size, stride in zip(root.shape, root.stride(), strict=True)
    ]
    memory.as_strided(shape, root.stride(), root.storage_offset()).fill_(True)
    return bool(
        memory.as_strided(view.shape, view.stride(), view.storage_offset()).all()
    )


def _end_in_memory(val: torch.Tensor) -> int:
    """Return the place in memory behind the last element of a tensor that has elements."""
    last = sum(
        (size - 1) * stride
        for size, stride in zip(val.shape, val.stride(), strict=True)
    )
    return int(val.storage_offset() + last + 1)
