"""The inverse of a view: the tensor that it was taken of, with the part that it shows replaced."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
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


PACKED = frozenset({aten.view.dtype, aten.view_as_complex.default})
"""Views that ask for a last dimension whose elements lie side by side."""


def scatter(graph: Graph, view: Node, base: Node, new: Node) -> Node | None:
    """``base`` with what ``view`` shows of it replaced by ``new``, inserted at the graph's insertion point.

    ``view``: the call that made the view (a ``getitem`` for a piece of a list). None if no inverse is known.
    """
    if view.target is aten.view.dtype or view.target is aten.view_as_real.default:
        new = _Calls(graph, new).add(aten.clone.default, new, memory_format=torch.contiguous_format)
    call = _inverse(view, base, new)
    if call is None:
        return None
    made = graph.call_function(*call)
    made.meta = {**new.meta, "val": base.meta["val"]}
    return made


def scatter_elements(graph: Graph, views: Sequence[Node], base: Node, new: Node) -> Node | None:
    """The same for any chain of views of ``base``: each element is put where the views say that it came from.

    None where that is not known before the program runs, or where several elements came from one place.
    """
    places = _places(views, base.meta["val"])
    if places is None or places.unique().numel() != places.numel():  # type: ignore[no-untyped-call]
        return None
    val = base.meta["val"]
    calls = _Calls(graph, new)
    taken = calls.add(aten.arange.default, val.numel(), device=val.device)
    taken = calls.add(aten.reshape.default, taken, list(val.shape))
    for view in views:
        taken = calls.add(view.target, taken, *view.args[1:], **view.kwargs)
    flat = [calls.add(aten.reshape.default, n, [-1]) for n in (base, taken, new)]
    put = calls.add(aten.index_put.default, flat[0], flat[1:2], flat[2])
    return calls.add(aten.reshape.default, put, list(val.shape))


def _places(views: Sequence[Node], val: torch.Tensor) -> torch.Tensor | None:
    """For each element that the last view shows, its position among those of ``val``."""
    shown = [v for view in views if isinstance(v := view.meta["val"], torch.Tensor)]
    if not all(isinstance(d, int) for v in (val, *shown) for d in v.shape) or any(
        _kind(v) != _kind(val) for v in shown
    ):
        return None
    if any(view.target is aten.as_strided.default for view in views) and not is_plain(val):
        return None
    places = torch.arange(val.numel()).reshape(tuple(val.shape))
    for view in views:
        target: Any = view.target
        args, kwargs = torch.fx.map_arg((view.args[1:], view.kwargs), _size_alone)
        places = target(places, *args, **kwargs)
    return places


def _size_alone(node: Node) -> Any:
    """What ``expand_as`` and the like look at of their second argument."""
    val = node.meta["val"]
    return torch.empty(val.shape, device="meta") if isinstance(val, torch.Tensor) else val


def _kind(val: torch.Tensor) -> Any:
    return val.dtype, val.is_conj(), val.is_neg()


def is_plain(val: torch.Tensor) -> bool:
    """Whether the memory of a tensor holds its elements in order, from the first on."""
    return all(isinstance(d, int) for d in val.shape) and val.is_contiguous() and not val.storage_offset()


class _Calls:
    """Calls that are added for ``origin``, with the values that they have under fake tensors."""

    def __init__(self, graph: Graph, origin: Node) -> None:
        self.graph, self.origin = graph, origin

    def add(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        made = self.graph.call_function(target, args, kwargs)
        vals, named = torch.fx.map_arg((args, kwargs), lambda n: n.meta["val"])
        with self.origin.meta["val"].fake_mode:
            made.meta = {**self.origin.meta, "val": target(*vals, **named)}
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
    aten.view.dtype: lambda view, base, new: (aten.view.dtype, (new, base.meta["val"].dtype)),
    aten.view_as_real.default: lambda view, base, new: (aten.view_as_complex.default, (new,)),
    aten.view_as_complex.default: lambda view, base, new: (aten.view_as_real.default, (new,)),
    aten.select.int: _select,
    aten.slice.Tensor: _slice,
    aten.narrow.default: _narrow,
    aten.diagonal.default: _diagonal,
    operator.getitem: _piece,
}
