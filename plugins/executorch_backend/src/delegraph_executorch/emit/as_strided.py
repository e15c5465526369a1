"""Emit ``as_strided`` and other operators that address memory instead of elements.

``as_strided`` counts positions in the memory that its argument is a view of: for
``x[1:].as_strided((2,), (1,), 0)``, position 0 is that of ``x[0]``. In a program file,
a tensor is dense and does not share memory with the source of a view. So the call is
applied to another tensor that contains all the elements it reads, here ``x``. If there
is no such tensor, the call is refused.

The window of a call is the set of positions that it reads or writes.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._prims_common import is_contiguous_or_false
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    _ShapeEnvGuardError,
    statically_known_true,
)
from torch.fx.node import map_arg

from .decompose import no_new_guards
from .graph_emitter import Replacement, unsupported

aten = torch.ops.aten
SCATTERS = aten.as_strided_scatter.default
DEPEND_ON_LAYOUT = frozenset(
    {
        aten.as_strided.default,
        aten.as_strided_copy.default,
        aten._reshape_alias.default,
        aten._reshape_alias_copy.default,
        SCATTERS,
    }
)
"""Operators with results that depend on the memory layout of their argument."""


def by_elements(node: Node, given: Mapping[str, Any]) -> Replacement | None:
    """Return a graph that computes the call from tensors that a file has.

    ``given`` are the arguments by name. Returns None if the kernel computes the call as
    it is. Raises Unsupported if the call reads memory outside of all tensors in the
    file.
    """
    window = _Window(given)
    if node.target is SCATTERS:
        return _scatter(node, given["self"], given["src"], window)
    chain = _views_from_root(given["self"])
    # First choice: ``as_strided`` of a dense tensor that contains the window. The root
    # comes first: it has more elements than its views, usually in C order.
    for source in chain:
        order = _dense_order(source.meta["val"])
        if order is None:
            continue
        offset = window.offset_in(source.meta["val"])
        if offset is None:
            continue
        is_c_order = order == sorted(order)
        is_same_offset = given.get("storage_offset") == offset
        if is_c_order and source is given["self"] and is_same_offset:
            return None
        size_stride_offset = (given["size"], given["stride"], offset)
        return _as_strided_of(source, None if is_c_order else order, size_stride_offset)
    # Second choice: select the elements one by one, from a tensor with gaps.
    if window.is_static:
        for source in chain:
            indices = window.indices_in(source.meta["val"])
            if indices is not None:
                return _select_elements(source, indices)
    raise unsupported(node, _why_not(node, given["self"]), _HINT)


_HINT = (
    "index the tensor instead, or call contiguous().clone() first and compute strides"
    " for the copy"
)


def _why_not(node: Node, value: Node) -> str:
    """Return why no tensor of the file contains the memory that ``node`` reads."""
    if not _is_static(value.meta["val"]):
        return (
            f"{node.target} reads memory at positions that depend on sizes only known"
            " at run time"
        )
    return f"{node.target} reads memory outside of the tensors that a program file has"


class _Window:
    """The positions in memory that a call of ``as_strided`` reads or writes.

    Sizes, strides and offset are those from export: ints or SymInts.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        view = given["self"].meta["val"]
        self.size = _vals(list(given.get("size") or ()))
        self.stride = _vals(list(given.get("stride") or ()))
        self.given_offset = given.get("storage_offset")
        if self.given_offset is None:
            self.offset = view.storage_offset()
        else:
            self.offset = _vals(self.given_offset)

    @property
    def is_static(self) -> bool:
        """Whether all numbers of the window are known at compile time."""
        return all(isinstance(n, int) for n in (*self.size, *self.stride, self.offset))

    def offset_in(self, val: Any) -> Any:
        """Return the window's offset in a dense tensor; None if it exceeds the tensor.

        If sizes are only known at run time, the kernel checks the window's end.
        """
        if any(statically_known_true(size == 0) for size in self.size):
            return 0
        first = _as_int(self.offset - val.storage_offset())
        last = first
        for size, stride in zip(self.size, self.stride, strict=True):
            last = last + (size - 1) * stride
        if not statically_known_true(first >= 0):
            return None
        if statically_known_true(last >= val.numel()):
            return None
        if isinstance(first, int):
            return first
        # a dynamic offset is a node of the program, so it can only be used as given
        starts_at_zero = statically_known_true(val.storage_offset() == 0)
        return self.given_offset if starts_at_zero else None

    def indices_in(self, val: Any) -> torch.Tensor | None:
        """Return the index in the flattened ``val`` of each element in the window.

        None if an element of the window is not in ``val``.
        """
        if not _is_static(val) or not val.numel():
            return None
        window_positions = _positions(self.size, self.stride, self.offset)
        index_at = _index_by_position(_positions_of(val), window_positions)
        indices = index_at[window_positions]
        return indices if bool((indices >= 0).all()) else None


def _scatter(node: Node, base: Node, src: Node, window: _Window) -> Replacement:
    """Return a graph that writes the elements of ``src`` to the window of ``base``.

    All positions must be known at compile time. The graph writes elements by their
    index in the flattened ``base``.
    """
    val = base.meta["val"]
    repeats = any(statically_known_true(stride == 0) for stride in val.stride())
    if repeats and not is_contiguous_or_false(val):
        text = f"{node.target} writes to a tensor with elements that share memory"
        raise unsupported(node, text, _HINT)
    if not window.is_static or not _is_static(val):
        text = f"{node.target} needs sizes and strides that are known at compile time"
        raise unsupported(node, text, _HINT)
    graph = _Graph(val.fake_mode)
    target = graph.input_for(base)
    source = graph.input_for(src)
    window_positions = _positions(window.size, window.stride, window.offset)
    base_positions = _positions_of(val)
    distinct = window_positions.unique()  # type: ignore[no-untyped-call]
    if distinct.numel() != window_positions.numel():
        text = f"{node.target} writes to the same memory twice"
        raise unsupported(node, text, _HINT)
    # for each element of ``base``, the index of its new value in ``src``, or -1
    source_index = _index_by_position(window_positions, base_positions)[
        base_positions.reshape(-1)
    ]
    replaced = (source_index >= 0).nonzero()[:, 0]
    if not replaced.numel():
        return graph.finish(graph.call(aten.clone.default, target))
    if src.meta["val"].dtype != val.dtype:
        source = graph.call(aten._to_copy.default, source, dtype=val.dtype)
    flat_target = graph.call(aten.reshape.default, target, [-1])
    flat_source = graph.call(aten.reshape.default, source, [-1])
    new_elements = graph.call(
        aten.index_select.default, flat_source, 0, source_index[replaced]
    )
    flat_result = graph.call(aten.scatter.src, flat_target, 0, replaced, new_elements)
    result = graph.call(aten.reshape.default, flat_result, list(val.shape))
    return graph.finish(result)


def _as_strided_of(
    source: Node, order: list[int] | None, size_stride_offset: tuple[Any, ...]
) -> Replacement:
    """Return a graph that computes ``as_strided`` of ``source``, and its inputs.

    ``order``: the order of the dimensions in memory, if it is not C order. In a file,
    tensors are in C order, so the permuted copy has the recorded memory.
    """
    graph = _Graph(source.meta["val"].fake_mode)
    memory = graph.input_for(source)
    if order is not None:
        memory = graph.call(aten.permute_copy.default, memory, order)
    window = [map_arg(v, graph.input_for) for v in size_stride_offset]
    return graph.finish(graph.call(aten.as_strided.default, memory, *window))


def _select_elements(source: Node, indices: torch.Tensor) -> Replacement:
    """Return a graph that selects elements by their index in the flattened ``source``.

    The result has the shape of ``indices``.
    """
    graph = _Graph(source.meta["val"].fake_mode)
    flat = graph.call(aten.reshape.default, graph.input_for(source), [-1])
    selected = graph.call(aten.index_select.default, flat, 0, indices.reshape(-1))
    result = graph.call(aten.reshape.default, selected, list(indices.shape))
    return graph.finish(result)


class _Graph:
    """Builds a ``Replacement``.

    Nodes of the program become inputs of the graph, and tensors its constants. All its
    values are dense, each in its own memory, as in a program file.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self.graph = Graph()
        self.root = torch.nn.Module()
        self.mode = mode
        self.inputs: dict[Node, Node] = {}

    def input_for(self, node: Node) -> Node:
        """Return the input of the graph for a node of the program; add it if new."""
        if node not in self.inputs:
            self.inputs[node] = made = self.graph.placeholder(node.name)
            made.meta["val"] = self._dense(node.meta["val"])
        return self.inputs[node]

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Append a call, and compute its value under fake tensors. Return its node."""
        args = tuple(
            self._constant(a) if isinstance(a, torch.Tensor) else a for a in args
        )
        made = self.graph.call_function(target, args, kwargs)
        if target is aten.permute_copy.default:
            # PyTorch's fake permute_copy replaces dynamic sizes by those of the example.
            target = aten.permute.default
        with self.mode:
            made.meta["val"] = self._dense(target(*_vals(args), **kwargs))
        return made

    def _dense(self, val: Any) -> Any:
        """Return a recorded tensor as it is in a file: in C order, in its own memory."""
        if not isinstance(val, torch.Tensor):
            return val
        with self.mode:
            return val.clone(memory_format=torch.contiguous_format)

    def _constant(self, tensor: torch.Tensor) -> Node:
        """Store a tensor in the graph module, and return a node that reads it."""
        name = f"indices_{len(self.graph.nodes)}"
        self.root.register_buffer(name, tensor)
        made = self.graph.get_attr(name)
        with self.mode:
            made.meta["val"] = torch.empty(tensor.shape, dtype=tensor.dtype)
        return made

    def finish(self, result: Node) -> Replacement:
        """Return the graph, with ``result`` as its output."""
        self.graph.output(result)
        return Replacement(GraphModule(self.root, self.graph), list(self.inputs))


def _views_from_root(value: Node) -> list[Node]:
    """Return the tensors that share the memory of ``value``, from the root to ``value``.

    Each is a view of the one before it.
    """
    chain = [value]
    source = _source_of_view(value)
    while source is not None:
        chain.append(source)
        source = _source_of_view(source)
    return chain[::-1]


def _source_of_view(view: Node) -> Node | None:
    """Return the tensor that ``view`` shares memory with; None if that is uncertain."""
    call: Any = view.args[0] if view.target is operator.getitem else view
    if not isinstance(call.target, OpOverload) or not call.args:
        return None
    arguments = call.target._schema.arguments
    # in the schema of a view, the first argument has the mark of an alias
    if not arguments or arguments[0].alias_info is None:
        return None
    source: Node = call.args[0]
    recorded = view.meta["val"]
    val = source.meta["val"]
    if (
        val.dtype != recorded.dtype
        or val.is_conj() != recorded.is_conj()
        or val.is_neg() != recorded.is_neg()
    ):
        # the view reads the bytes as other elements, or changes them on the way
        return None
    args, kwargs = _vals((call.args, call.kwargs))
    # Some operators, such as reshape, return views only for some strides: call again
    # under fake tensors, and compare the memory.
    try:
        with val.fake_mode, no_new_guards(val.fake_mode):
            again = call.target(*args, **kwargs)
    except (_ShapeEnvGuardError, GuardOnDataDependentSymNode):
        return None
    # an operator such as split returns several views; getitem takes one
    shown = again if call is view else again[view.args[1]]
    is_same_memory = shown.untyped_storage()._cdata == val.untyped_storage()._cdata
    return source if is_same_memory else None


def _dense_order(val: Any) -> list[int] | None:
    """Return the dimensions in their order in memory, outermost first.

    Sizes (2, 3, 4) with strides (12, 1, 3) give [0, 2, 1]. None if there are gaps, or
    elements that share memory.
    """
    if is_contiguous_or_false(val):
        return list(range(val.dim()))
    inner_first: list[int] = []
    # the stride that the next dimension must have: the product of the inner sizes
    step: Any = 1
    remaining = list(range(val.dim()))[::-1]
    while remaining:
        for dim in remaining:
            # the stride of a dimension with one element has no meaning
            has_one_element = statically_known_true(val.shape[dim] == 1)
            if has_one_element or statically_known_true(val.stride(dim) == step):
                break
        else:
            return None
        remaining.remove(dim)
        inner_first.append(dim)
        step = step * val.shape[dim]
    return inner_first[::-1]


def _positions_of(val: Any) -> torch.Tensor:
    """Return the positions in memory of the elements of a recorded tensor."""
    return _positions(val.shape, val.stride(), val.storage_offset())


def _positions(size: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    """Return a tensor of the shape ``size`` with the position in memory of each element."""
    positions = torch.full(tuple(size), offset)
    for dim, (count, step) in enumerate(zip(size, stride, strict=True)):
        # shaped to broadcast: ``count`` along ``dim``, else 1
        shape = [1] * len(size)
        shape[dim] = count
        positions = positions + (torch.arange(count) * step).reshape(shape)
    return positions


def _index_by_position(positions: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return a table: position -> its index in the flattened ``positions``, or -1.

    The table is long enough for all positions in ``positions`` and ``others``.
    """
    ends = [int(p.max()) + 1 for p in (positions, others) if p.numel()]
    table = torch.full((max(ends, default=0),), -1)
    table[positions.reshape(-1)] = torch.arange(positions.numel())
    return table


def _is_static(val: Any) -> bool:
    """Return whether the layout of a recorded tensor is known at compile time."""
    return all(
        isinstance(n, int) for n in (*val.shape, *val.stride(), val.storage_offset())
    )


def _as_int(number: Any) -> Any:
    """Return an int if the number is known."""
    known = number.node.maybe_as_int() if isinstance(number, torch.SymInt) else number
    return number if known is None else known


def _vals(values: Any) -> Any:
    """Replace nodes by their values from export."""
    return map_arg(values, lambda n: n.meta["val"])
