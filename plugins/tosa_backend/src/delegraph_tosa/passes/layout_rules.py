"""What RESHAPE, TRANSPOSE and IDENTITY make of a view: another view, where they can."""

from __future__ import annotations

from collections.abc import Callable

from ..ir.graph import Operator
from ..ir.operators import IDENTITY, RESHAPE, TRANSPOSE
from . import axes as ax
from .axes import Axes, Shape
from .rewriter import both
from .views import View, Views

MAX_RANK = 6
"""Highest rank of level 8K (specification: Levels); no RESHAPE here makes a higher one than this."""


def _identity(views: Views, operator: Operator) -> None:
    views.see(operator.outputs[0], views.view(operator.inputs[0]))


def _transpose(views: Views, operator: Operator) -> None:
    assert isinstance(operator, TRANSPOSE)
    base, axes, source = views.view(operator.inputs[0])
    axes = tuple([axes[p] for p in operator.perms])
    views.see(operator.outputs[0], View(base, axes, both(source, operator.source)))


def _reshape(views: Views, operator: Operator) -> None:
    result, (base, axes, source) = operator.outputs[0], views.view(operator.inputs[0])
    source = both(source, operator.source)
    pieces = ax.pieces(operator.inputs[0].shape, result.shape)
    seen = ax.renamed(pieces, axes, result.rank)
    if seen is not None and base.rank:  # TRANSPOSE, SLICE and others have no form of rank 0
        views.see(result, View(base, seen, source))
    else:
        views.see(result, _regrouped(views, View(base, axes, source), pieces, result.shape))


def _regrouped(views: Views, view: View, pieces: list[ax.Piece], shape: Shape) -> View:
    """A RESHAPE that joins and splits axes of the view, applied to its base.

    Axes that are joined must lie side by side in the base. If they do, in another order, a TRANSPOSE within them is
    enough (channel shuffle); otherwise all axes are put in the view's order first.
    """
    base, axes, source = view
    joined = [[a for i in old if (a := axes[i]) is not None and base.shape[a] != 1] for old, _ in pieces]
    perms = _gathered(base.shape, joined)
    rank = base.rank + sum(len(new) - 1 for _, new in pieces if new)
    if perms is None or rank > MAX_RANK:
        straight = views.arrange(base, _as_viewed(axes, base.rank), source)
        return View(views.reshape(straight, shape, source), ax.plain(len(shape)), source)
    moved = tuple([None if a is None else perms.index(a) for a in axes])
    return _split(views, View(views.arrange(base, perms, source), moved, source), pieces, shape)


def _gathered(shape: Shape, joined: list[list[int]]) -> tuple[int, ...] | None:
    """The base's axes with each of ``joined`` in order, or None if one of them does not lie side by side."""
    group = {axis: axes for axes in joined for axis in axes}
    perms: list[int] = []
    wide = [a for a in range(len(shape)) if shape[a] != 1]
    for axes in joined:
        places = [wide.index(a) for a in axes]
        if places and max(places) - min(places) != len(places) - 1:
            return None
    for axis in range(len(shape)):
        if axis not in perms:
            perms += group.get(axis, [axis])
    return tuple(perms)


def _as_viewed(axes: Axes, rank: int) -> tuple[int, ...]:
    """The base's axes in the order of the view; those that it does not name come last."""
    named = [a for a in axes if a is not None]
    return (*named, *[a for a in range(rank) if a not in named])


def _split(views: Views, view: View, pieces: list[ax.Piece], shape: Shape) -> View:
    """The same for a base in which the axes of each piece lie side by side and in order."""
    base, axes, source = view
    targets = _targets(base.shape, axes, pieces)
    sizes: list[int] = []
    seen: list[int | None] = [None] * len(shape)
    for axis in range(base.rank):
        new = targets.get(axis, ())
        if not new:
            sizes.append(1)
        elif seen[new[0]] is None:
            for j in new:
                seen[j] = len(sizes)
                sizes.append(shape[j])
    if ax.ascends(ax.order(tuple(sizes), tuple(seen))):
        return View(views.reshape(base, shape, source), ax.plain(len(shape)), source)
    return View(views.reshape(base, tuple(sizes), source), tuple(seen), source)


def _targets(shape: Shape, axes: Axes, pieces: list[ax.Piece]) -> dict[int, tuple[int, ...]]:
    """Axis of the base -> the axes of the result that take its elements; axes of size 1 only if they stay alone."""
    return {
        a: new
        for old, new in pieces
        for i in old
        if (a := axes[i]) is not None and (shape[a] != 1 or len(old) == len(new) == 1)
    }


Rule = Callable[[Views, Operator], None]

LAYOUT: dict[type[Operator], Rule] = {TRANSPOSE: _transpose, RESHAPE: _reshape, IDENTITY: _identity}
"""What happens at operators that only arrange their operand."""
