"""Arithmetic on the axes of a view: tuples only, no values and no operators.

``axes`` describes a view of a base tensor: axis i of the view is axis ``axes[i]`` of
the base, or a new axis of size 1 if that is None. Axes of the base that are not in
``axes`` have size 1. So transposing, adding and dropping axes of size 1 all have this
form, and so do their compositions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TypeVar

from ..ir.dynamic_sizes import is_dynamic

Axes = tuple[int | None, ...]
Shape = tuple[int, ...]
Entry = TypeVar("Entry")


@cache
def plain(rank: int) -> Axes:
    """Return the axes of the identity view of a value of this rank."""
    return tuple(range(rank))


def viewed(shape: Shape, axes: Axes) -> Shape:
    """Return the shape of the view of a base of ``shape``."""
    return tuple([1 if a is None else shape[a] for a in axes])


def order(shape: Shape, axes: Axes) -> list[int]:
    """Return the base's axes with more than one element, in the order of the view.

    If they ascend, the view is a RESHAPE.
    """
    return [a for a in axes if a is not None and shape[a] != 1]


def ascends(axes: list[int]) -> bool:
    """Return whether ``axes`` are in ascending order."""
    return list(axes) == sorted(axes)


@cache
def through(axes: Axes, layout: Axes, rank: int) -> Axes:
    """Return the view ``axes``, arranged as the base of the view ``layout``.

    ``rank`` is the rank of the base of ``layout``. Axis ``layout[i]`` of the result is
    axis i of the view. For example, the view (0,3,1,2) in the layout (0,3,1,2) is
    (0,1,2,3), its own base. Axes that ``layout`` adds are dropped.
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
    places = [fill] * rank
    for entry, axis in zip(entries, axes, strict=True):
        if axis is not None:
            places[axis] = entry
        elif entry != fill:
            return None
    return tuple(places)


def without(axes: Axes, dropped: int) -> Axes:
    """Return the view ``axes`` after axis ``dropped`` was removed from the base."""
    return tuple([a if a is None or a < dropped else a - 1 for a in axes])


def completed(axes: Axes) -> tuple[int, ...]:
    """Return ``axes`` as a permutation, with missing axes for new ones."""
    unnamed = (a for a in range(len(axes)) if a not in axes)
    return tuple([next(unnamed) if a is None else a for a in axes])


Piece = tuple[tuple[int, ...], tuple[int, ...]]
"""Return (old axes, new axes) of each piece of a RESHAPE.

The elements of a piece stay together.
"""


def pieces(old: Shape, new: Shape) -> list[Piece]:
    """Return the smallest independent parts of a RESHAPE from ``old`` to ``new``.

    (8,6,1,5) -> (8,2,3,5) has the parts (0) -> (0), (1) -> (1,2), (2) -> () and (3) ->
    (3).
    """
    result: list[Piece] = []
    i = j = 0
    while i < len(old) and j < len(new):
        if old[i] == new[j]:
            result.append(((i,), (j,)))
            i = i + 1
            j = j + 1
        elif old[i] == 1:
            result.append(((i,), ()))
            i += 1
        elif new[j] == 1:
            result.append(((), (j,)))
            j += 1
        else:
            piece = _piece(old, new, i, j)
            result.append(piece)
            i = piece[0][-1] + 1
            j = piece[1][-1] + 1
    result += [((k,), ()) for k in range(i, len(old))]
    return result + [((), (k,)) for k in range(j, len(new))]


def _piece(old: Shape, new: Shape, i: int, j: int) -> Piece:
    """Return the smallest piece that starts at ``old[i]`` and ``new[j]``."""
    # products of the sizes from the first axes on; the piece ends where they are equal
    old_count = old[i]
    new_count = new[j]
    last_old = i
    last_new = j
    while old_count != new_count:
        takes_old = _is_part(old_count, new_count)
        is_at_end = last_old + 1 == len(old) if takes_old else last_new + 1 == len(new)
        if takes_old is None or is_at_end:
            # sizes that are known at run time only: all other axes are one piece
            last_old = len(old) - 1
            last_new = len(new) - 1
            break
        if takes_old:
            last_old += 1
            old_count *= old[last_old]
        else:
            last_new += 1
            new_count *= new[last_new]
    return tuple(range(i, last_old + 1)), tuple(range(j, last_new + 1))


def _is_part(old_count: int, new_count: int) -> bool | None:
    """Return whether ``old_count`` is less than ``new_count``.

    None if that is known at run time only. Of two counts known at run time only, a
    divisor of the other one is less.
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

    None if the RESHAPE does more than to add and drop axes of size 1.
    """
    result: list[int | None] = [None] * rank
    for old, new in pieces:
        if len(old) > 1 or len(new) > 1:
            return None
        if old and new:
            result[new[0]] = axes[old[0]]
    return tuple(result)
