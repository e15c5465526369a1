"""The inverse of a view: the tensor that it was taken of, with the part that it shows replaced."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from .aliases import LIST_VIEWS

aten = torch.ops.aten

_RESHAPES = frozenset(
    {
        aten.view.default,
        aten.reshape.default,
        aten.view_as.default,
        aten.reshape_as.default,
        aten._unsafe_view.default,
        aten.flatten.using_ints,
        aten.unflatten.int,
        aten.ravel.default,
        aten.unsqueeze.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
    }
)
_PERMUTES = frozenset(
    {
        aten.transpose.int,
        aten.permute.default,
        aten.t.default,
        aten.swapaxes.default,
        aten.swapdims.default,
        aten.movedim.int,
        aten.movedim.intlist,
        aten.moveaxis.int,
        aten.moveaxis.intlist,
        aten.numpy_T.default,
        aten.mT.default,
    }
)


def scatter(graph: Graph, view: Node, base: Node, new: Node) -> Node | None:
    """``base`` with what ``view`` shows of it replaced by ``new``, inserted at the graph's insertion point.

    ``view``: the call that made the view (a ``getitem`` for a piece of a list). None if no inverse is known.
    """
    call = _inverse(view, base, new)
    if call is None:
        return None
    made = graph.call_function(*call)
    made.meta = {**new.meta, "val": base.meta["val"]}
    return made


def _inverse(view: Node, base: Node, new: Node) -> tuple[Any, tuple[Any, ...]] | None:
    target: Any = view.target
    if target in _RESHAPES:
        return _reshaped(base, new)
    if target in _PERMUTES:
        return aten.permute.default, (new, _inverse_permutation(view, base))
    make = _SCATTERS.get(target)
    return make(view, base, new) if make else None


def _reshaped(base: Node, new: Node) -> tuple[Any, tuple[Any, ...]]:
    shape = list(base.meta["val"].shape)
    if all(isinstance(d, int) for d in shape):
        return aten.reshape.default, (new, shape)
    return aten.reshape_as.default, (new, base)


def _inverse_permutation(view: Node, base: Node) -> list[int]:
    """Found by permuting axes of different lengths."""
    rank = base.meta["val"].dim()
    target: Any = view.target
    lengths = target(torch.empty(tuple(range(rank)), device="meta"), *view.args[1:], **view.kwargs).shape
    return [list(lengths).index(d) for d in range(rank)]


def _bound(node: Node) -> dict[str, Any]:
    """Arguments of a call by name, defaults included."""
    target: Any = node.target
    schema = target._schema.arguments
    return {a.name: _given(node, k, a) for k, a in enumerate(schema)}


def _given(node: Node, position: int, argument: Any) -> Any:
    if position < len(node.args):
        return node.args[position]
    return node.kwargs.get(argument.name, argument.default_value)


def _select(view: Node, base: Node, new: Node) -> Any:
    a = _bound(view)
    return aten.select_scatter.default, (base, new, a["dim"], a["index"])


def _slice(view: Node, base: Node, new: Node) -> Any:
    a = _bound(view)
    return aten.slice_scatter.default, (base, new, a["dim"], a["start"], a["end"], a["step"])


def _narrow(view: Node, base: Node, new: Node) -> Any:
    a = _bound(view)
    dim, start, length = a["dim"], a["start"], a["length"]
    size = base.meta["val"].shape[dim]
    if not all(isinstance(v, int) for v in (start, length, size)):
        return None
    first = start + size if start < 0 else start
    return aten.slice_scatter.default, (base, new, dim, first, first + length)


def _diagonal(view: Node, base: Node, new: Node) -> Any:
    a = _bound(view)
    return aten.diagonal_scatter.default, (base, new, a["offset"], a["dim1"], a["dim2"])


def _piece(view: Node, base: Node, new: Node) -> Any:
    """A piece of ``chunk``, ``split`` or ``unbind``; its place follows from the sizes of those before it."""
    pieces: Any = view.args[0]
    k: Any = view.args[1]
    if pieces.target not in LIST_VIEWS:
        return None
    dim, vals = _bound(pieces)["dim"], pieces.meta["val"]
    k = k % len(vals)
    if pieces.target is aten.unbind.int:
        return aten.select_scatter.default, (base, new, dim, k)
    sizes = [v.shape[dim] for v in vals[: k + 1]]
    if not all(isinstance(s, int) for s in sizes):
        return None
    return aten.slice_scatter.default, (base, new, dim, sum(sizes[:k]), sum(sizes))


_SCATTERS: dict[Any, Callable[[Node, Node, Node], Any]] = {
    aten.select.int: _select,
    aten.slice.Tensor: _slice,
    aten.narrow.default: _narrow,
    aten.diagonal.default: _diagonal,
    operator.getitem: _piece,
}
