"""The rules of ``sink_transposes`` for RESHAPE, TRANSPOSE and IDENTITY.

Their result is a view if possible.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir.graph import Operator
from ..ir.operators import IDENTITY, RESHAPE, TRANSPOSE
from . import view_axes as ax
from .pending_views import View, Views
from .rewriter import merge_sources
from .view_axes import Axes, Shape

MAX_RANK = 6
"""MAX_RANK of level 8K (specification: Levels).

Rules here make no RESHAPE to a higher rank.
"""


def _identity(views: Views, operator: Operator) -> None:
    """The result of IDENTITY is its operand."""
    views.see(operator.outputs[0], views.view(operator.inputs[0]))


def _transpose(views: Views, operator: Operator) -> None:
    """Make the result a view of the operand's base, with permuted axes."""
    assert isinstance(operator, TRANSPOSE)
    base, axes, source = views.view(operator.inputs[0])
    axes = tuple([axes[p] for p in operator.perms])
    views.see(
        operator.outputs[0], View(base, axes, merge_sources(source, operator.source))
    )


def _reshape(views: Views, operator: Operator) -> None:
    """The result of a RESHAPE that adds and drops axes of size 1 is a view of the base.

    Else the base is reshaped.
    """
    result, (base, axes, source) = operator.outputs[0], views.view(operator.inputs[0])
    source = merge_sources(source, operator.source)
    pieces = ax.pieces(operator.inputs[0].shape, result.shape)
    new_axes = ax.renamed(pieces, axes, result.rank)
    # TRANSPOSE, SLICE and others have no form of rank 0
    if new_axes is not None and base.rank:
        views.see(result, View(base, new_axes, source))
    else:
        views.see(
            result, _regrouped(views, View(base, axes, source), pieces, result.shape)
        )


def _regrouped(views: Views, view: View, pieces: list[ax.Piece], shape: Shape) -> View:
    """Return the result of a RESHAPE that joins and splits axes of a view.

    It is applied to the view's base. Axes that a piece joins have to be adjacent in the
    base. If they are, but in another order, the base is transposed within them (channel
    shuffle). Otherwise the base is transposed to the order of the view first.
    """
    base, axes, source = view
    joined = [
        [a for i in old if (a := axes[i]) is not None and base.shape[a] != 1]
        for old, _ in pieces
    ]
    perms = _gathered(base.shape, joined)
    rank = base.rank + sum(len(new) - 1 for _, new in pieces if new)
    if perms is None or rank > MAX_RANK:
        in_view_order = views.arrange(base, _as_viewed(axes, base.rank), source)
        return View(
            views.reshape(in_view_order, shape, source), ax.plain(len(shape)), source
        )
    moved = tuple([None if a is None else perms.index(a) for a in axes])
    return _split(
        views, View(views.arrange(base, perms, source), moved, source), pieces, shape
    )


def _gathered(shape: Shape, joined: list[list[int]]) -> tuple[int, ...] | None:
    """Return the permutation that makes the axes of each list adjacent.

    None if the axes of a list are not adjacent in the base; axes of size 1 in between
    do not count.
    """
    group = {axis: axes for axes in joined for axis in axes}
    perms: list[int] = []
    wide = [a for a in range(len(shape)) if shape[a] != 1]
    for axes in joined:
        positions = [wide.index(a) for a in axes]
        if positions and max(positions) - min(positions) != len(positions) - 1:
            return None
    for axis in range(len(shape)):
        if axis not in perms:
            perms += group.get(axis, [axis])
    return tuple(perms)


def _as_viewed(axes: Axes, rank: int) -> tuple[int, ...]:
    """Return the permutation of the base's axes to the order of the view.

    Axes that are not in the view come last.
    """
    named = [a for a in axes if a is not None]
    return (*named, *[a for a in range(rank) if a not in named])


def _split(views: Views, view: View, pieces: list[ax.Piece], shape: Shape) -> View:
    """As ``_regrouped``, if the axes of each piece are adjacent and in order."""
    base, axes, source = view
    targets = _targets(base.shape, axes, pieces)
    # the new base: ``sizes`` are its shape, ``new_axes`` its axis for each axis of the
    # result
    sizes: list[int] = []
    new_axes: list[int | None] = [None] * len(shape)
    for axis in range(base.rank):
        new = targets.get(axis, ())
        if not new:
            sizes.append(1)
        elif new_axes[new[0]] is None:
            for j in new:
                new_axes[j] = len(sizes)
                sizes.append(shape[j])
    if ax.ascends(ax.order(tuple(sizes), tuple(new_axes))):
        return View(views.reshape(base, shape, source), ax.plain(len(shape)), source)
    return View(views.reshape(base, tuple(sizes), source), tuple(new_axes), source)


def _targets(
    shape: Shape, axes: Axes, pieces: list[ax.Piece]
) -> dict[int, tuple[int, ...]]:
    """Axis of the base -> the axes of the result that take its elements.

    Axes of size 1 only if alone in a piece.
    """
    return {
        a: new
        for old, new in pieces
        for i in old
        if (a := axes[i]) is not None and (shape[a] != 1 or len(old) == len(new) == 1)
    }


Rule = Callable[[Views, Operator], None]

LAYOUT: dict[type[Operator], Rule] = {
    TRANSPOSE: _transpose,
    RESHAPE: _reshape,
    IDENTITY: _identity,
}
"""Operator that only changes the layout of its operand -> its rule."""
