"""The rules of ``sink_transposes`` for RESHAPE, TRANSPOSE and IDENTITY.

Their result is a view if possible.
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
"""MAX_RANK of level 8K (specification: Levels).

Rules here make no RESHAPE to a higher rank.
"""


def _identity(views: Views, operator: Operator) -> None:
    """Make the result of IDENTITY its operand."""
    views.see(operator.outputs[0], views.view(operator.inputs[0]))


def _transpose(views: Views, operator: Operator) -> None:
    """Make the result a view of the operand's base, with permuted axes."""
    assert isinstance(operator, TRANSPOSE)
    view = views.view(operator.inputs[0])
    axes = tuple([view.axes[p] for p in operator.perms])
    source = merge_sources(view.source, operator.source)
    views.see(operator.outputs[0], View(view.base, axes, source))


def _reshape(views: Views, operator: Operator) -> None:
    """Make the result a view of the base if RESHAPE adds or drops axes of size 1.

    Else the base is reshaped.
    """
    x = operator.inputs[0]
    result = operator.outputs[0]
    view = views.view(x)
    view = view._replace(source=merge_sources(view.source, operator.source))
    pieces = ax.pieces(x.shape, result.shape)
    axes = ax.renamed(pieces, view.axes, result.rank)
    # TRANSPOSE, SLICE and others have no form of rank 0
    if axes is not None and view.base.rank:
        views.see(result, view._replace(axes=axes))
    else:
        views.see(result, _regrouped(views, view, pieces, result.shape))


def _regrouped(views: Views, view: View, pieces: list[ax.Piece], shape: Shape) -> View:
    """Return the result of a RESHAPE that joins and splits axes of a view.

    It is applied to the view's base. Axes that a piece joins have to be adjacent in the
    base. If they are, but in another order, the base is transposed within them (channel
    shuffle). Otherwise the base is transposed to the order of the view first.
    """
    base, axes, source = view
    joined = [_wide_axes(view, old) for old, _ in pieces]
    perms = _gathered(base.shape, joined)
    rank = base.rank + sum(len(new) - 1 for _, new in pieces if new)
    if perms is None or rank > MAX_RANK:
        in_view_order = views.arrange(base, _as_viewed(axes, base.rank), source)
        reshaped = views.reshape(in_view_order, shape, source)
        return View(reshaped, ax.plain(len(shape)), source)
    moved_axes = tuple([None if a is None else perms.index(a) for a in axes])
    moved = View(views.arrange(base, perms, source), moved_axes, source)
    return _split(views, moved, pieces, shape)


def _wide_axes(view: View, old: Sequence[int]) -> list[int]:
    """Return the axes of the base for axes of the view, without those of size 1."""
    axes = [view.axes[axis] for axis in old]
    return [axis for axis in axes if axis is not None and view.base.shape[axis] != 1]


def _gathered(shape: Shape, joined: list[list[int]]) -> tuple[int, ...] | None:
    """Return the permutation that makes the axes of each list adjacent.

    None if the axes of a list are not adjacent in the base; axes of size 1 in between
    do not count.
    """
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


def _as_viewed(axes: Axes, rank: int) -> tuple[int, ...]:
    """Return the permutation of the base's axes to the order of the view.

    Axes that are not in the view come last.
    """
    named = [axis for axis in axes if axis is not None]
    others = [axis for axis in range(rank) if axis not in named]
    return (*named, *others)


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
            for target in new:
                new_axes[target] = len(sizes)
                sizes.append(shape[target])
    new_shape = tuple(sizes)
    if ax.ascends(ax.order(new_shape, tuple(new_axes))):
        return View(views.reshape(base, shape, source), ax.plain(len(shape)), source)
    return View(views.reshape(base, new_shape, source), tuple(new_axes), source)


def _targets(
    shape: Shape, axes: Axes, pieces: list[ax.Piece]
) -> dict[int, tuple[int, ...]]:
    """Map axes of the base to the axes of the result that take their elements.

    Axes of size 1 only if alone in a piece.
    """
    targets: dict[int, tuple[int, ...]] = {}
    for old, new in pieces:
        is_alone = len(old) == len(new) == 1
        for position in old:
            axis = axes[position]
            if axis is not None and (shape[axis] != 1 or is_alone):
                targets[axis] = new
    return targets


Rule = Callable[[Views, Operator], None]

LAYOUT: dict[type[Operator], Rule] = {
    TRANSPOSE: _transpose,
    RESHAPE: _reshape,
    IDENTITY: _identity,
}
"""Operator that only changes the layout of its operand -> its rule."""
