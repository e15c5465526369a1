"""Arithmetic on the axes of a view: tuples only, no values and no operators.

``axes`` describes a view of a base tensor: axis i of the view is axis ``axes[i]`` of the base, or a new axis of size 1
where that is None. Axes of the base that are not named have size 1. So a transposition, an added and a dropped axis of
size 1 are one thing, and their composition is again one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TypeVar

from ..ir.sizes import is_dynamic

Axes = tuple[int | None, ...]
Shape = tuple[int, ...]
Entry = TypeVar("Entry")


@cache
def plain(rank: int) -> Axes:
    """The axes of a value as it is."""
    return tuple(range(rank))


def viewed(shape: Shape, axes: Axes) -> Shape:
    """Shape of the view of a base of ``shape``."""
    return tuple([1 if a is None else shape[a] for a in axes])


def order(shape: Shape, axes: Axes) -> list[int]:
    """The base's axes with more than one element, in the order of the view. If it ascends, the view is a RESHAPE."""
    return [a for a in axes if a is not None and shape[a] != 1]


def ascends(axes: list[int]) -> bool:
    return list(axes) == sorted(axes)


@cache
def through(axes: Axes, lead: Axes, rank: int) -> Axes:
    """The view with ``axes`` as the base of the view ``lead`` is arranged, whose rank is ``rank``.

    A view (0,3,1,2) that is led by (0,3,1,2) is its own base: (0,1,2,3). Axes that ``lead`` adds are dropped.
    """
    arranged: list[int | None] = [None] * rank
    for axis, place in zip(axes, lead, strict=True):
        if place is not None:
            arranged[place] = axis
    return tuple(arranged)


def spread(entries: Sequence[Entry], axes: Axes, rank: int, fill: Entry) -> tuple[Entry, ...] | None:
    """One entry an axis of the view -> one an axis of the base; None if one that is not ``fill`` has no place."""
    places = [fill] * rank
    for entry, axis in zip(entries, axes, strict=True):
        if axis is not None:
            places[axis] = entry
        elif entry != fill:
            return None
    return tuple(places)


def without(axes: Axes, dropped: int) -> Axes:
    """The view after its base lost axis ``dropped``, which the view does not name any more."""
    return tuple([a if a is None or a < dropped else a - 1 for a in axes])


def completed(axes: Axes) -> tuple[int, ...]:
    """The permutation that ``axes`` of the base's rank are, its new axes being those that it does not name."""
    unnamed = (a for a in range(len(axes)) if a not in axes)
    return tuple([next(unnamed) if a is None else a for a in axes])


Piece = tuple[tuple[int, ...], tuple[int, ...]]
"""Old axes and the new axes that take their elements."""


def pieces(old: Shape, new: Shape) -> list[Piece]:
    """The finest pieces that a RESHAPE from ``old`` to ``new`` falls into.

    (8,6,1,5) -> (8,2,3,5): 0 to 0, 1 to 1 and 2, 2 to nothing, 3 to 3.
    """
    found: list[Piece] = []
    i = j = 0
    while i < len(old) and j < len(new):
        if old[i] == new[j]:
            found.append(((i,), (j,)))
            i, j = i + 1, j + 1
        elif old[i] == 1:
            found.append(((i,), ()))
            i += 1
        elif new[j] == 1:
            found.append(((), (j,)))
            j += 1
        else:
            piece = _piece(old, new, i, j)
            found.append(piece)
            i, j = piece[0][-1] + 1, piece[1][-1] + 1
    found += [((k,), ()) for k in range(i, len(old))]
    return found + [((), (k,)) for k in range(j, len(new))]


def _piece(old: Shape, new: Shape, i: int, j: int) -> Piece:
    """The smallest piece that starts at ``old[i]`` and ``new[j]``, whose sizes differ."""
    taken, given, first = old[i], new[j], (i, j)
    while taken != given:
        smaller = _is_part(taken, given)
        if smaller is None or (i + 1 == len(old) if smaller else j + 1 == len(new)):
            i, j = len(old) - 1, len(new) - 1  # sizes that are known at run time only: all the rest is one piece
            break
        if smaller:
            i += 1
            taken *= old[i]
        else:
            j += 1
            given *= new[j]
    return tuple(range(first[0], i + 1)), tuple(range(first[1], j + 1))


def _is_part(taken: int, given: int) -> bool | None:
    """Whether ``taken`` has less elements than ``given``, which may be a multiple of it; None if nobody knows."""
    if not is_dynamic(taken) and not is_dynamic(given):
        return taken < given
    if given % taken == 0:
        return True
    return False if taken % given == 0 else None


def renamed(found: list[Piece], axes: Axes, rank: int) -> Axes | None:
    """The axes of a view after a RESHAPE that only adds and drops axes of size 1; None if it does more."""
    result: list[int | None] = [None] * rank
    for old, new in found:
        if len(old) > 1 or len(new) > 1:
            return None
        if old and new:
            result[new[0]] = axes[old[0]]
    return tuple(result)
