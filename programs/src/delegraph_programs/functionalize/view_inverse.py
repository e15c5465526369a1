"""The inverse of a view: the tensor that the view was taken of, with the part that the
view shows replaced.

A write to a view has to reach that tensor. Each view operator has an operator that
undoes it: ``select`` has ``select_scatter``, a permutation has the inverse permutation.
A chain of views of which one has no inverse is inverted element by element.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from ..operator_schema import bound_arguments, overloads
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
    """Insert a call that computes ``base`` with the part that ``view`` shows replaced
    by ``new``.

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
    """Like ``insert_inverse``, for any chain of ``views`` of ``base``, element by
    element.

    The inserted calls number the elements of ``base`` (0, 1, 2, ... in the shape of
    ``base``) and take the same views of these numbers. What the last view shows are the
    positions in ``base`` of the elements of ``new``, which are put there. ``views``:
    the view of ``base`` first, the view that was written last. Returns None if the
    positions are not known before the program runs, or if the chain shows an element
    several times.
    """
    val = base.meta["val"]
    # computed here only to decide: the program computes them again
    positions = _positions(views, val)
    if positions is None or positions.unique().numel() != positions.numel():  # type: ignore[no-untyped-call]
        return None
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
    """Insert a call of ``target`` at the graph's insertion point, with the metadata of
    ``like``.

    The value that is recorded for the call is computed under fake tensors.
    """
    node = graph.call_function(target, args, kwargs)
    vals, keyword_vals = torch.fx.map_arg((args, kwargs), lambda n: n.meta["val"])
    with like.meta["val"].fake_mode:
        node.meta = {**like.meta, "val": target(*vals, **keyword_vals)}
    return node


def _positions(views: Sequence[Node], val: torch.Tensor) -> torch.Tensor | None:
    """For each element that the last of ``views`` shows, its position among the
    elements of ``val``.

    ``val``: the recorded value of the tensor that the chain of views begins with. None
    if a size is symbolic, or if a view does more than move elements.
    """
    tensors = [
        val,
        *(v for view in views if isinstance(v := view.meta["val"], torch.Tensor)),
    ]
    if not all(isinstance(size, int) for v in tensors for size in v.shape):
        return None
    if len({(v.dtype, v.is_conj(), v.is_neg()) for v in tensors}) > 1:
        return None  # views that change the bits of an element do not just move it
    windows = [
        view.meta["val"] for view in views if view.target is aten.as_strided.default
    ]
    if windows and (
        not is_packed(val)
        or val.storage_offset()
        or any(_goes_beyond(v, val.numel()) for v in windows)
    ):
        # ``as_strided`` shows memory, whose places are positions only if it holds the
        # elements in order
        return None
    # number the elements of ``val``, and take the views of the numbers
    positions = torch.arange(val.numel()).reshape(tuple(val.shape))
    for view in views:
        target: Any = view.target
        args, kwargs = torch.fx.map_arg((view.args[1:], view.kwargs), _stand_in)
        positions = target(positions, *args, **kwargs)
    return positions


def _goes_beyond(val: torch.Tensor, end: int) -> bool:
    """Whether a tensor shows elements of its storage from number ``end`` on; True if
    offset or strides are symbolic.
    """
    offset = val.storage_offset()
    strides = val.stride()
    if not all(isinstance(n, int) for n in (offset, *strides)):
        return True
    return (
        bool(val.numel())
        and offset + sum((d - 1) * s for d, s in zip(val.shape, strides, strict=True))
        >= end
    )


def _stand_in(node: Node) -> Any:
    """What stands in for an operand whose size alone a view reads (``expand_as``): a
    meta tensor; a number as it is.
    """
    val = node.meta["val"]
    return (
        torch.empty(val.shape, device="meta") if isinstance(val, torch.Tensor) else val
    )


def is_packed(val: torch.Tensor) -> bool:
    """Whether a tensor of fixed sizes is contiguous."""
    return all(isinstance(d, int) for d in val.shape) and val.is_contiguous()


def _inverse(view: Node, base: Node, new: Node) -> Call | None:
    """The call that computes ``base`` with what ``view`` shows replaced by ``new``;
    None if none is known.
    """
    shape = base.meta["val"].shape
    if view.target in _RESHAPES:
        static = all(isinstance(d, int) for d in shape)
        return (
            (aten.reshape.default, (new, list(shape)))
            if static
            else (aten.reshape_as.default, (new, base))
        )
    if view.target in _PERMUTES:
        # permute a tensor whose axis k has the length k: the lengths then say where
        # each axis goes
        target: Any = view.target
        lengths = target(
            torch.empty(tuple(range(len(shape))), device="meta"),
            *view.args[1:],
            **view.kwargs,
        ).shape
        return aten.permute.default, (
            new,
            [list(lengths).index(d) for d in range(len(shape))],
        )
    if view.target is operator.getitem:
        return _inverse_of_item(view, base, new)
    inverse = _INVERSES.get(view.target)
    return inverse(bound_arguments(view), base, new) if inverse else None


def _inverse_of_item(view: Node, base: Node, new: Node) -> Call | None:
    """The inverse of one item of ``chunk``, ``split`` or ``unbind``; None for other
    calls and symbolic sizes.

    The item begins where the items before it end: at the sum of their sizes.
    """
    call: Any = view.args[0]
    k: Any = view.args[1]  # which item; counted from the end if it is negative
    if call.target not in LIST_VIEWS:
        return None
    dim = bound_arguments(call)["dim"]
    vals = call.meta["val"]
    k = k % len(vals)
    if call.target is aten.unbind.int:
        return aten.select_scatter.default, (base, new, dim, k)
    sizes = [v.shape[dim] for v in vals[: k + 1]]
    if not all(isinstance(s, int) for s in sizes):
        return None
    return aten.slice_scatter.default, (base, new, dim, sum(sizes[:k]), sum(sizes))


def _inverse_of_narrow(a: Mapping[str, Any], base: Node, new: Node) -> Call | None:
    """The inverse of ``narrow`` with the arguments ``a``; None if a number is known at
    run time only.
    """
    size = base.meta["val"].shape[a["dim"]]
    start = a["start"]
    length = a["length"]
    if not all(isinstance(v, int) for v in (size, start, length)):
        return None
    first = start + size if start < 0 else start
    return aten.slice_scatter.default, (base, new, a["dim"], first, first + length)


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
