"""Arithmetic on the axes of a view: tuples only, no values and no operators.

A view is a tensor that has the elements of another one, its base, with other axes. The
tuple ``axes`` describes it: axis i of the view is axis ``axes[i]`` of the base. If that
is None, it is a new axis of size 1. Axes of the base that are not in ``axes`` have size
1.

For example, a base [N,H,W,C] has the view (0,3,1,2) of shape [N,C,H,W]. A base [N,1,C]
has the view (0,2,None) of shape [N,C,1]. Any TRANSPOSE is a view, and so is a RESHAPE
that adds or drops axes of size 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, TypeVar

from ..ir.dynamic_sizes import is_dynamic

Axes = tuple[int | None, ...]
Shape = tuple[int, ...]
Entry = TypeVar("Entry")


@cache
def identity(rank: int) -> Axes:
    """Return the axes of the identity view of a value of this rank."""
    return tuple(range(rank))


def view_shape(shape: Shape, axes: Axes) -> Shape:
    """Return the shape of the view of a base of ``shape``."""
    return tuple([1 if a is None else shape[a] for a in axes])


def is_reshape(shape: Shape, axes: Axes) -> bool:
    """Return whether a RESHAPE of a base of ``shape`` computes the view.

    It does if all axes except those of size 1 keep their order.
    """
    wide = [a for a in axes if a is not None and shape[a] != 1]
    return wide == sorted(wide)


@cache
def axes_in_layout(axes: Axes, layout: Axes, rank: int) -> Axes:
    """Return the view ``axes`` with its axes in the order of another view's base.

    ``layout`` are the axes of the other view, and ``rank`` is the rank of its base.
    Axis ``layout[i]`` of the result is axis i of the view. Axes that ``layout`` adds
    are dropped.

    For example, ``layout`` (0,3,1,2) is an image [N,C,H,W] with a base [N,H,W,C]. The
    view (0,3,1,2) of another [N,H,W,C] becomes (0,1,2,3), which is its base. The view
    (0,1,2,3) of a base [N,C,H,W] becomes (0,2,3,1), which is a TRANSPOSE of it.
    """
    arranged: list[int | None] = [None] * rank
    for axis, axis_of_base in zip(axes, layout, strict=True):
        if axis_of_base is not None:
            arranged[axis_of_base] = axis
    return tuple(arranged)


def spread(
    entries: Sequence[Entry], axes: Axes, rank: int, fill: Entry
) -> tuple[Entry, ...] | None:
    """Convert one entry per axis of the view to one per axis of the base.

    An axis of the base that is not in the view gets ``fill``. Returns None if an entry
    other than ``fill`` belongs to an axis that the view adds.
    """
    entries_of_base = [fill] * rank
    for entry, axis in zip(entries, axes, strict=True):
        if axis is not None:
            entries_of_base[axis] = entry
        elif entry != fill:
            return None
    return tuple(entries_of_base)


def without_base_axis(axes: Axes, dropped: int) -> Axes:
    """Return the view ``axes`` after axis ``dropped`` was removed from the base.

    The view does not have this axis. For example, (2,0) without axis 1 is (1,0).
    """
    return tuple([a if a is None or a < dropped else a - 1 for a in axes])


def as_permutation(axes: Axes) -> tuple[int, ...]:
    """Return ``axes`` of a view that has the rank of its base, as a permutation.

    Axes of the base that the view dropped are used for axes that the view added; all
    have size 1.
    """
    dropped = (a for a in range(len(axes)) if a not in axes)
    return tuple([next(dropped) if a is None else a for a in axes])


class Piece(NamedTuple):
    """A part of a RESHAPE that makes the axes ``new`` from the axes ``old`` alone."""

    old: tuple[int, ...]
    new: tuple[int, ...]


def pieces(old: Shape, new: Shape) -> list[Piece]:
    """Return the smallest independent parts of a RESHAPE from ``old`` to ``new``.

    The RESHAPE [8,6,1,5] -> [8,2,3,5] has four pieces of axes: (0) -> (0),
    (1) -> (1,2), (2) -> () and (3) -> (3).
    """
    result: list[Piece] = []
    i = j = 0
    while i < len(old) and j < len(new):
        if old[i] == new[j]:
            result.append(Piece((i,), (j,)))
            i += 1
            j += 1
        elif old[i] == 1:
            result.append(Piece((i,), ()))
            i += 1
        elif new[j] == 1:
            result.append(Piece((), (j,)))
            j += 1
        else:
            piece = _piece(old, new, i, j)
            result.append(piece)
            i = piece.old[-1] + 1
            j = piece.new[-1] + 1
    result += [Piece((k,), ()) for k in range(i, len(old))]
    result += [Piece((), (k,)) for k in range(j, len(new))]
    return result


def _piece(old: Shape, new: Shape, i: int, j: int) -> Piece:
    """Return the smallest piece that starts at ``old[i]`` and ``new[j]``."""
    # products of the sizes from the first axes on; the piece ends where they are equal
    old_count = old[i]
    new_count = new[j]
    last_old = i
    last_new = j
    while old_count != new_count:
        takes_old = _is_less(old_count, new_count)
        is_at_end = last_old + 1 == len(old) if takes_old else last_new + 1 == len(new)
        if takes_old is None or is_at_end:
            # dynamic sizes do not decide where the piece ends: take all other axes
            last_old = len(old) - 1
            last_new = len(new) - 1
            break
        if takes_old:
            last_old += 1
            old_count *= old[last_old]
        else:
            last_new += 1
            new_count *= new[last_new]
    return Piece(tuple(range(i, last_old + 1)), tuple(range(j, last_new + 1)))


def _is_less(old_count: int, new_count: int) -> bool | None:
    """Return whether ``old_count`` is less than ``new_count``, which differs.

    If a count is dynamic, a divisor of the other count is less. Returns None if neither
    divides the other.
    """
    if not is_dynamic(old_count) and not is_dynamic(new_count):
        return old_count < new_count
    if new_count % old_count == 0:
        return True
    if old_count % new_count == 0:
        return False
    return None


def renamed(pieces: list[Piece], axes: Axes, rank: int) -> Axes | None:
    """Return the ``axes`` of a view after a RESHAPE that consists of ``pieces``.

    None if the RESHAPE does more than add and drop axes of size 1.
    """
    result: list[int | None] = [None] * rank
    for old, new in pieces:
        if len(old) > 1 or len(new) > 1:
            return None
        if old and new:
            result[new[0]] = axes[old[0]]
    return tuple(result)
