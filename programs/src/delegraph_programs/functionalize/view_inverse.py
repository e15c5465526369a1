"""Computes the inverse of a view: its base tensor with the visible part replaced.

A write to a view has to reach the tensor that it is a view of, its base. Most view
operators have an operator that undoes them: ``select`` has ``select_scatter``, a
permutation has the inverse permutation. If a view in a chain has no inverse, the chain
is inverted element by element.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from ..memory_overlap import extent
from ..operator_schema import bound_arguments, overloads
from ..symbolic_sizes import are_static
from .aliases import LIST_VIEWS

aten = torch.ops.aten
Call = tuple[Any, tuple[Any, ...]]
"""An operator and its arguments."""

_RESHAPES = overloads(
    "view.default reshape.default view_as.default reshape_as.default"
    " _unsafe_view.default flatten.using_ints unflatten.int ravel.default"
    " unsqueeze.default squeeze.default squeeze.dim squeeze.dims"
)
_PERMUTES = overloads(
    "transpose.int permute.default t.default swapaxes.default swapdims.default"
    " movedim.int movedim.intlist moveaxis.int moveaxis.intlist numpy_T.default"
    " mT.default"
)


def insert_inverse(graph: Graph, view: Node, base: Node, new: Node) -> Node | None:
    """Insert a call that computes ``base`` with ``new`` as the part that ``view`` shows.

    It is inserted at the graph's insertion point. ``view`` is the call that made the
    view, or the ``getitem`` that unpacks it from a list of views. Returns None if no
    inverse is known.
    """
    if view.target is aten.view.dtype or view.target is aten.view_as_real.default:
        # their inverses need the elements of the last dimension side by side in memory
        new = insert_computed(
            graph, new, aten.clone.default, new, memory_format=torch.contiguous_format
        )
    call = _inverse(view, base, new)
    if call is None:
        return None
    inserted = graph.call_function(*call)
    inserted.meta = {**new.meta, "val": base.meta["val"]}
    return inserted


def insert_inverse_by_elements(
    graph: Graph, views: Sequence[Node], base: Node, new: Node
) -> Node | None:
    """Insert the inverse of a chain of ``views`` of ``base``, element by element.

    The inserted calls number the elements of ``base`` (0, 1, 2, ... in the shape of
    ``base``) and take the same views of these numbers. The last view then shows the
    positions in ``base`` that the elements of ``new`` are put into. ``views``: the view
    of ``base`` first, the written view last. Returns None if the positions are not
    known before the program runs, or if the chain shows an element several times.
    """
    val = base.meta["val"]
    positions = _positions(views, val)
    if positions is None or positions.unique().numel() != positions.numel():  # type: ignore[no-untyped-call]
        return None
    # the program computes the positions again, since a table of them may be large
    numbers = insert_computed(
        graph, new, aten.arange.default, val.numel(), device=val.device
    )
    numbers = insert_computed(
        graph, new, aten.reshape.default, numbers, list(val.shape)
    )
    for view in views:
        numbers = insert_computed(
            graph, new, view.target, numbers, *view.args[1:], **view.kwargs
        )
    flat = [
        insert_computed(graph, new, aten.reshape.default, n, [-1])
        for n in (base, numbers, new)
    ]
    put = insert_computed(
        graph, new, aten.index_put.default, flat[0], flat[1:2], flat[2]
    )
    return insert_computed(graph, new, aten.reshape.default, put, list(val.shape))


def insert_computed(
    graph: Graph, like: Node, target: Any, *args: Any, **kwargs: Any
) -> Node:
    """Insert a call of ``target`` at the graph's insertion point, with metadata of
    ``like``.

    The value that is recorded for the call is computed under fake tensors.
    """
    node = graph.call_function(target, args, kwargs)
    vals, keyword_vals = torch.fx.map_arg((args, kwargs), lambda n: n.meta["val"])
    with like.meta["val"].fake_mode:
        node.meta = {**like.meta, "val": target(*vals, **keyword_vals)}
    return node


def _positions(views: Sequence[Node], val: torch.Tensor) -> torch.Tensor | None:
    """Return the position in ``val`` of each element that the last of ``views`` shows.

    ``val``: the recorded value of the base of the chain. None if a size is symbolic, or
    if a view does more than move elements.
    """
    shown = [view.meta["val"] for view in views]
    tensors = [val, *(v for v in shown if isinstance(v, torch.Tensor))]
    if not all(are_static(v.shape) for v in tensors):
        return None
    if len({(v.dtype, v.is_conj(), v.is_neg()) for v in tensors}) > 1:
        return None  # views of another type do more than move elements
    windows = [
        view.meta["val"] for view in views if view.target is aten.as_strided.default
    ]
    if windows and (
        not is_packed(val)
        or val.storage_offset()
        or any(_goes_beyond(v, val.numel()) for v in windows)
    ):
        # ``as_strided`` shows memory by place. A place is a position only if the memory
        # holds the elements in order.
        return None
    # number the elements of ``val``, and take the views of the numbers
    positions = torch.arange(val.numel()).reshape(tuple(val.shape))
    for view in views:
        target: Any = view.target
        args, kwargs = torch.fx.map_arg((view.args[1:], view.kwargs), _example_of)
        positions = target(positions, *args, **kwargs)
    return positions


def _goes_beyond(val: torch.Tensor, end: int) -> bool:
    """Return whether a tensor shows elements of its storage from number ``end`` on.

    True if offset or strides are symbolic.
    """
    offset = val.storage_offset()
    if not are_static((offset, *val.stride())):
        return True
    if not val.numel():
        return False
    return bool(offset + extent(val.shape, val.stride()) > end)


def _example_of(node: Node) -> Any:
    """Return a meta tensor for an operand of which a view reads only the size.

    ``expand_as`` has such an operand. Numbers are returned unchanged.
    """
    val = node.meta["val"]
    if not isinstance(val, torch.Tensor):
        return val
    return torch.empty(val.shape, device="meta")


def is_packed(val: torch.Tensor) -> bool:
    """Return whether a tensor of fixed sizes is contiguous."""
    return are_static(val.shape) and val.is_contiguous()


def _inverse(view: Node, base: Node, new: Node) -> Call | None:
    """Return the call that ``insert_inverse`` inserts, or None."""
    shape = base.meta["val"].shape
    if view.target in _RESHAPES:
        if are_static(shape):
            return aten.reshape.default, (new, list(shape))
        return aten.reshape_as.default, (new, base)
    if view.target in _PERMUTES:
        # the view of a tensor with length k in axis k shows the new order of the axes
        target: Any = view.target
        example = torch.empty(tuple(range(len(shape))), device="meta")
        axes = list(target(example, *view.args[1:], **view.kwargs).shape)
        back = [axes.index(dim) for dim in range(len(shape))]
        return aten.permute.default, (new, back)
    if view.target is operator.getitem:
        return _inverse_of_item(view, base, new)
    inverse = _INVERSES.get(view.target)
    return inverse(bound_arguments(view), base, new) if inverse else None


def _inverse_of_item(view: Node, base: Node, new: Node) -> Call | None:
    """Return the call that writes ``new`` into ``base`` in place of an item of a list.

    ``view`` is the ``getitem`` that takes the item from the list, which ``chunk``,
    ``split`` or ``unbind`` returned. Returns None for lists of other operators, and if
    the item or one before it has a symbolic size.
    """
    list_call: Any = view.args[0]
    number: Any = view.args[1]
    if list_call.target not in LIST_VIEWS:
        return None
    dim = bound_arguments(list_call)["dim"]
    items = list_call.meta["val"]
    position = number % len(items)  # negative numbers count from the end
    if list_call.target is aten.unbind.int:
        return aten.select_scatter.default, (base, new, dim, position)
    sizes = [item.shape[dim] for item in items[: position + 1]]
    if not are_static(sizes):
        return None
    end = sum(sizes)
    start = end - sizes[-1]
    return aten.slice_scatter.default, (base, new, dim, start, end)


def _inverse_of_narrow(
    arguments: Mapping[str, Any], base: Node, new: Node
) -> Call | None:
    """Return the call that writes ``new`` into ``base`` in place of a ``narrow``.

    ``arguments`` are those of the ``narrow``. Returns None if its start or length, or
    the size of ``base``, is symbolic.
    """
    dim = arguments["dim"]
    start = arguments["start"]
    length = arguments["length"]
    size = base.meta["val"].shape[dim]
    if not are_static((size, start, length)):
        return None
    if start < 0:
        start += size
    return aten.slice_scatter.default, (base, new, dim, start, start + length)


_INVERSES: dict[Any, Callable[[Mapping[str, Any], Node, Node], Call | None]] = {
    aten.view.dtype: lambda a, base, new: (
        aten.view.dtype,
        (new, base.meta["val"].dtype),
    ),
    aten.view_as_real.default: lambda a, base, new: (
        aten.view_as_complex.default,
        (new,),
    ),
    aten.view_as_complex.default: lambda a, base, new: (
        aten.view_as_real.default,
        (new,),
    ),
    aten.select.int: lambda a, base, new: (
        aten.select_scatter.default,
        (base, new, a["dim"], a["index"]),
    ),
    aten.slice.Tensor: lambda a, base, new: (
        aten.slice_scatter.default,
        (base, new, a["dim"], a["start"], a["end"], a["step"]),
    ),
    aten.narrow.default: _inverse_of_narrow,
    aten.diagonal.default: lambda a, base, new: (
        aten.diagonal_scatter.default,
        (base, new, a["offset"], a["dim1"], a["dim2"]),
    ),
}
"""Operator -> its inverse, as a function of (arguments by name, ``base``, ``new``)."""
