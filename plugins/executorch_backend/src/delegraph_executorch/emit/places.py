"""Operators that read memory by place, put in terms of elements.

``as_strided`` counts places in the memory that its argument is a view of. A tensor of a
program file is dense, in C order, and shares no memory with what it is a view of in
PyTorch. So the call is emitted of a tensor that has all the elements which it reads, by
where they lay when the program was exported, and refused where there is no such tensor.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
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

from .body import unsupported

aten = torch.ops.aten
SCATTERS = aten.as_strided_scatter.default
BY_PLACE = frozenset(
    {
        aten.as_strided.default,
        aten.as_strided_copy.default,
        aten._reshape_alias.default,
        aten._reshape_alias_copy.default,
        SCATTERS,
    }
)
"""Operators whose result depends on where the elements of their argument lie in memory.
"""


def by_elements(
    node: Node, given: Mapping[str, Any]
) -> tuple[GraphModule, list[Node]] | None:
    """(graph, nodes that are its inputs) of what a call of ``BY_PLACE`` computes; None
    if its kernel does as it is.

    ``given``: its arguments by name. Raises Unsupported for places that hold no element
    that the file has.
    """
    window = _Window(given)
    if node.target is SCATTERS:
        return _scattered(node, given["self"], given["src"], window)
    chain = _views_from_root(given["self"])
    # The root first: its elements lie in more of the memory than those of its views,
    # and as a rule in C order.
    for source in chain:
        order = _dense_order(source.meta["val"])
        offset = window.offset_in(source.meta["val"]) if order is not None else None
        if order is not None and offset is not None:
            plain = order == sorted(order)
            if (
                plain
                and source is given["self"]
                and given.get("storage_offset") == offset
            ):
                return None
            return _read(
                source, None if plain else order, given["size"], given["stride"], offset
            )
    for source in chain if window.is_static else ():
        elements = window.elements_of(source.meta["val"])
        if elements is not None:
            return _gathered(source, elements)
    raise unsupported(node, _why_not(node, given["self"]), _HINT)


_HINT = (
    "index the tensor instead; or call contiguous().clone() first, and count places in"
    " that"
)


def _why_not(node: Node, value: Node) -> str:
    what = f"{node.target} reads memory by place"
    if not _is_static(value.meta["val"]):
        return (
            f"{what}, and where the elements lie that it reads depends on sizes that"
            " are known at run time only"
        )
    return (
        f"{what}, and some of these places hold no element of what it is a view of,"
        " which a program file does not have"
    )


class _Window:
    """What ``as_strided`` shows of memory, with sizes as export recorded them."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        view = given["self"].meta["val"]
        size, stride, offset = (
            given.get(name) for name in ("size", "stride", "storage_offset")
        )
        self.size, self.stride = (
            map_arg(list(v or ()), lambda n: n.meta["val"]) for v in (size, stride)
        )
        self.given_offset = offset
        self.offset = (
            view.storage_offset()
            if offset is None
            else map_arg(offset, lambda n: n.meta["val"])
        )

    @property
    def is_static(self) -> bool:
        return all(isinstance(n, int) for n in (*self.size, *self.stride, self.offset))

    def offset_in(self, val: Any) -> Any:
        """The offset in a dense tensor's own memory, as an argument; None if it does
        not show that memory alone.

        Of sizes that are known at run time only, the kernel itself checks that they
        stay within the memory.
        """
        if any(statically_known_true(d == 0) for d in self.size):
            return 0
        first = _plain(self.offset - val.storage_offset())
        last = first + sum(
            (d - 1) * s for d, s in zip(self.size, self.stride, strict=True)
        )
        if not statically_known_true(first >= 0) or statically_known_true(
            last >= val.numel()
        ):
            return None
        if (
            isinstance(last, int)
            and isinstance(val.numel(), int)
            and last >= val.numel()
        ):
            return None
        if isinstance(first, int):
            return first
        return (
            self.given_offset
            if statically_known_true(val.storage_offset() == 0)
            else None
        )

    def elements_of(self, val: Any) -> torch.Tensor | None:
        """For each element that is shown, its number among those of ``val``; None if
        one is not among them.
        """
        if not _is_static(val) or not val.numel():
            return None
        shown = _places(self.size, self.stride, self.offset)
        held = _places_of(val)
        elements = _numbered(held, shown)[shown]
        return elements if bool((elements >= 0).all()) else None


def _scattered(
    node: Node, base: Node, src: Node, window: _Window
) -> tuple[GraphModule, list[Node]]:
    """``base`` with the elements of ``src`` in those of its places that the window
    shows.
    """
    val = base.meta["val"]
    if any(
        statically_known_true(s == 0) for s in val.stride()
    ) and not is_contiguous_or_false(val):
        raise unsupported(
            node,
            f"{node.target} writes by place into elements that share memory",
            _HINT,
        )
    if not window.is_static or not _is_static(val):
        text = (
            f"{node.target} writes memory by place, with sizes that are known at run"
            " time only"
        )
        raise unsupported(node, text, _HINT)
    graph = _Graph(val.fake_mode)
    into = graph.take(base)
    new = graph.take(src)
    shown = _places(window.size, window.stride, window.offset)
    held = _places_of(val)
    if shown.unique().numel() != shown.numel():  # type: ignore[no-untyped-call]
        raise unsupported(node, f"{node.target} writes a place in memory twice", _HINT)
    number = _numbered(shown, held)
    chosen = number[held.reshape(-1)]
    replaced = (chosen >= 0).nonzero()[:, 0]
    if not replaced.numel():
        return graph.returning(graph.call(aten.clone.default, into))
    if src.meta["val"].dtype != val.dtype:
        new = graph.call(aten._to_copy.default, new, dtype=val.dtype)
    flat = graph.call(aten.reshape.default, into, [-1])
    elements = graph.call(
        aten.index_select.default,
        graph.call(aten.reshape.default, new, [-1]),
        0,
        chosen[replaced],
    )
    put = graph.call(aten.scatter.src, flat, 0, replaced, elements)
    return graph.returning(graph.call(aten.reshape.default, put, list(val.shape)))


def _read(
    source: Node, order: list[int] | None, size: Any, stride: Any, offset: Any
) -> tuple[GraphModule, list[Node]]:
    """The kernel's own ``as_strided`` of ``source``, whose dimensions are first laid
    out in ``order``.
    """
    graph = _Graph(source.meta["val"].fake_mode)
    memory = graph.take(source)
    if order is not None:
        memory = graph.call(aten.permute_copy.default, memory, order)
    window = [map_arg(v, graph.take) for v in (size, stride, offset)]
    return graph.returning(graph.call(aten.as_strided.default, memory, *window))


def _gathered(source: Node, elements: torch.Tensor) -> tuple[GraphModule, list[Node]]:
    graph = _Graph(source.meta["val"].fake_mode)
    flat = graph.call(aten.reshape.default, graph.take(source), [-1])
    taken = graph.call(aten.index_select.default, flat, 0, elements.reshape(-1))
    return graph.returning(
        graph.call(aten.reshape.default, taken, list(elements.shape))
    )


class _Graph:
    """A graph in the making; nodes of the program that it takes are its inputs, tensors
    are its constants.

    Its values are recorded as a program file has them: dense, each in memory of its
    own.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self.graph = Graph()
        self.root = torch.nn.Module()
        self.mode = mode
        self.inputs: dict[Node, Node] = {}

    def take(self, node: Node) -> Node:
        if node not in self.inputs:
            self.inputs[node] = made = self.graph.placeholder(node.name)
            made.meta["val"] = self._dense(node.meta["val"])
        return self.inputs[node]

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        args = tuple(
            self._constant(a) if isinstance(a, torch.Tensor) else a for a in args
        )
        made = self.graph.call_function(target, args, kwargs)
        if target is aten.permute_copy.default:
            # of the other one, torch takes sizes that vary for those of the example
            target = aten.permute.default
        with self.mode:
            made.meta["val"] = self._dense(
                target(*map_arg(args, lambda n: n.meta["val"]), **kwargs)
            )
        return made

    def _dense(self, val: Any) -> Any:
        with self.mode:
            return (
                val.clone(memory_format=torch.contiguous_format)
                if isinstance(val, torch.Tensor)
                else val
            )

    def _constant(self, tensor: torch.Tensor) -> Node:
        name = f"places_{len(self.graph.nodes)}"
        self.root.register_buffer(name, tensor)
        made = self.graph.get_attr(name)
        with self.mode:
            made.meta["val"] = torch.empty(tensor.shape, dtype=tensor.dtype)
        return made

    def returning(self, result: Node) -> tuple[GraphModule, list[Node]]:
        """The whole, and what it takes."""
        self.graph.output(result)
        return GraphModule(self.root, self.graph), list(self.inputs)


def _views_from_root(value: Node) -> list[Node]:
    """``value``, what it is a view of, what that is a view of and so on; the last of
    these first.
    """
    chain = [value]
    while (source := _viewed(chain[-1])) is not None:
        chain.append(source)
    return chain[::-1]


def _viewed(view: Node) -> Node | None:
    """What ``view`` shows the elements of, in the memory where they are; None if that
    is not certain.
    """
    call: Any = view.args[0] if view.target is operator.getitem else view
    arguments = (
        call.target._schema.arguments if isinstance(call.target, OpOverload) else ()
    )
    if not arguments or arguments[0].alias_info is None or not call.args:
        return None
    source = call.args[0]
    recorded = view.meta["val"]
    val = source.meta["val"]
    if [val.dtype, val.is_conj(), val.is_neg()] != [
        recorded.dtype,
        recorded.is_conj(),
        recorded.is_neg(),
    ]:
        # places are counted in other units, or the elements change on the way
        return None
    args, kwargs = map_arg((call.args, call.kwargs), lambda n: n.meta["val"])
    try:  # some are views of some strides only, as ``reshape`` is
        with val.fake_mode, _no_new_guards(val.fake_mode):
            again = call.target(*args, **kwargs)
    except (_ShapeEnvGuardError, GuardOnDataDependentSymNode):
        return None
    shown = again[view.args[1]] if call is not view else again
    return (
        source
        if shown.untyped_storage()._cdata == val.untyped_storage()._cdata
        else None
    )


def _no_new_guards(mode: FakeTensorMode) -> AbstractContextManager[Any]:
    return (
        nullcontext()
        if mode.shape_env is None
        else mode.shape_env.error_on_new_guards()
    )


def _dense_order(val: Any) -> list[int] | None:
    """The dimensions as they lie in memory, outermost first; None if there are gaps, or
    elements that share a place.
    """
    if is_contiguous_or_false(val):
        return list(range(val.dim()))
    inner_first: list[int] = []
    step: Any = 1
    left = list(range(val.dim()))[::-1]
    while left:
        fitting = (
            d
            for d in left
            if statically_known_true(val.shape[d] == 1)
            or statically_known_true(val.stride(d) == step)
        )
        dim = next(fitting, None)
        if dim is None:
            return None
        left.remove(dim)
        inner_first.append(dim)
        step = step * val.shape[dim]
    return inner_first[::-1]


def _places_of(val: Any) -> torch.Tensor:
    return _places(val.shape, val.stride(), val.storage_offset())


def _places(size: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    """Where in memory the elements of such a tensor lie, in its shape."""
    places = torch.full(tuple(size), offset)
    for dim, (count, step) in enumerate(zip(size, stride, strict=True)):
        along = [1] * len(size)
        along[dim] = count
        places = places + (torch.arange(count) * step).reshape(along)
    return places


def _numbered(places: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """For each place in memory, as far as ``others`` lie, which of ``places`` it is, or
    -1.
    """
    number = torch.full(
        (max([int(p.max()) + 1 for p in (places, others) if p.numel()], default=0),), -1
    )
    number[places.reshape(-1)] = torch.arange(places.numel())
    return number


def _is_static(val: Any) -> bool:
    return all(
        isinstance(n, int) for n in (*val.shape, *val.stride(), val.storage_offset())
    )


def _plain(number: Any) -> Any:
    """An int where that is known."""
    known = number.node.maybe_as_int() if isinstance(number, torch.SymInt) else number
    return number if known is None else known
