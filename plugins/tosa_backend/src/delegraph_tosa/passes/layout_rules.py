"""The rules of ``sink_transposes`` for RESHAPE, TRANSPOSE and IDENTITY.

Their result is a view of a base if possible (``view_axes``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..ir.graph import Operator
from ..ir.operators import IDENTITY, RESHAPE, TRANSPOSE
from . import view_axes as ax
from .pending_views import View, Views
from .rewriter import merge_sources
from .view_axes import Axes, Shape

MAX_RANK = 6
"""MAX_RANK of level 8K (specification: Levels), the highest rank of a new base."""


def _identity(views: Views, operator: Operator) -> None:
    """Replace the result of IDENTITY by its operand."""
    views.note_view(operator.outputs[0], views.view(operator.inputs[0]))


def _transpose(views: Views, operator: Operator) -> None:
    """Make the result a view of the operand's base, with permuted axes."""
    assert isinstance(operator, TRANSPOSE)
    view = views.view(operator.inputs[0])
    axes = tuple([view.axes[p] for p in operator.perms])
    source = merge_sources(view.source, operator.source)
    views.note_view(operator.outputs[0], View(view.base, axes, source))


def _reshape(views: Views, operator: Operator) -> None:
    """Make the result a view of the operand's base.

    The base stays if RESHAPE only adds or drops axes of size 1. Otherwise, the base is
    reshaped.
    """
    x = operator.inputs[0]
    result = operator.outputs[0]
    view = views.view(x)
    view = view._replace(source=merge_sources(view.source, operator.source))
    pieces = ax.pieces(x.shape, result.shape)
    axes = ax.renamed(pieces, view.axes, result.rank)
    # TRANSPOSE, SLICE and others have no form of rank 0
    if axes is not None and view.base.rank:
        views.note_view(result, view._replace(axes=axes))
    else:
        views.note_view(result, _regrouped(views, view, pieces, result.shape))


def _regrouped(views: Views, view: View, pieces: list[ax.Piece], shape: Shape) -> View:
    """Return the result of a RESHAPE that joins and splits axes of a view.

    The base is reshaped, if possible. For example, the view [N,8,H,W] of a base
    [N,H,W,8] is reshaped to [N,2,4,H,W]: the new base is [N,H,W,2,4].

    Axes that are joined must be adjacent in the base. If they are, but in another order
    (channel shuffle), a TRANSPOSE orders them. If they are not, a TRANSPOSE moves all
    axes to the order of the view, and the result is no view.
    """
    base, axes, source = view
    joined = [_wide_axes(view, piece.old) for piece in pieces]
    perms = _with_adjacent_axes(base.shape, joined)
    rank = base.rank + sum(len(piece.new) - 1 for piece in pieces if piece.new)
    if perms is None or rank > MAX_RANK:
        in_view_order = views.compute_view(base, _view_order(axes, base.rank), source)
        reshaped = views.reshape(in_view_order, shape, source)
        return View(reshaped, ax.identity(len(shape)), source)
    moved_axes = tuple([None if a is None else perms.index(a) for a in axes])
    moved = View(views.compute_view(base, perms, source), moved_axes, source)
    return _with_reshaped_base(views, moved, pieces, shape)


def _wide_axes(view: View, old: Sequence[int]) -> list[int]:
    """Return the axes of the base for axes of the view, without those of size 1."""
    axes = [view.axes[axis] for axis in old]
    return [axis for axis in axes if axis is not None and view.base.shape[axis] != 1]


def _with_adjacent_axes(
    shape: Shape, joined: list[list[int]]
) -> tuple[int, ...] | None:
    """Return the permutation of the base that puts the axes of each list in order.

    For example, the lists [0], [3,2] need the permutation (0,1,3,2). None if the axes
    of a list are not adjacent in the base; axes of size 1 in between do not count.
    """
    # axis -> the list in which it is
    group: dict[int, list[int]] = {}
    wide = [axis for axis, size in enumerate(shape) if size != 1]
    for axes in joined:
        group.update(dict.fromkeys(axes, axes))
        positions = [wide.index(axis) for axis in axes]
        if positions and max(positions) - min(positions) != len(positions) - 1:
            return None
    perms: list[int] = []
    for axis in range(len(shape)):
        if axis not in perms:
            perms += group.get(axis, [axis])
    return tuple(perms)


def _view_order(axes: Axes, rank: int) -> tuple[int, ...]:
    """Return the permutation of the base's axes to the order of the view.

    Axes that are not in the view come last.
    """
    named = [axis for axis in axes if axis is not None]
    others = [axis for axis in range(rank) if axis not in named]
    return (*named, *others)


def _with_reshaped_base(
    views: Views, view: View, pieces: list[ax.Piece], shape: Shape
) -> View:
    """As ``_regrouped``, if the axes of each piece are adjacent and in order.

    Each axis of the base is replaced by the axes of the result that take its elements.
    """
    base, axes, source = view
    targets = _targets(base.shape, axes, pieces)
    # shape of the new base
    sizes: list[int] = []
    # axis of the result -> axis of the new base
    new_axes: list[int | None] = [None] * len(shape)
    for axis in range(base.rank):
        new = targets.get(axis, ())
        if not new:
            sizes.append(1)
        elif new_axes[new[0]] is None:
            # the first axis of its piece
            for target in new:
                new_axes[target] = len(sizes)
                sizes.append(shape[target])
    new_shape = tuple(sizes)
    if ax.is_reshape(new_shape, tuple(new_axes)):
        return View(views.reshape(base, shape, source), ax.identity(len(shape)), source)
    return View(views.reshape(base, new_shape, source), tuple(new_axes), source)


def _targets(
    shape: Shape, axes: Axes, pieces: list[ax.Piece]
) -> dict[int, tuple[int, ...]]:
    """Map axes of the base to the axes of the result that take their elements.

    An axis of size 1 is left out, unless it becomes one axis.
    """
    targets: dict[int, tuple[int, ...]] = {}
    for old, new in pieces:
        is_kept = len(old) == len(new) == 1
        for axis_of_view in old:
            axis = axes[axis_of_view]
            if axis is not None and (shape[axis] != 1 or is_kept):
                targets[axis] = new
    return targets


Rule = Callable[[Views, Operator], None]

LAYOUT: dict[type[Operator], Rule] = {
    TRANSPOSE: _transpose,
    RESHAPE: _reshape,
    IDENTITY: _identity,
}
"""Operator that only changes the layout of its operand -> its rule."""
