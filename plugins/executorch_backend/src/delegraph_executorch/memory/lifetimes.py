"""Compute when each piece of memory is in use.

A lifetime runs from the first instruction that uses the memory to the last one. If it
enters a loop, it runs to the loop's end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .storage import Home, Storage


@dataclass
class Lifetime:
    """The first and the last instruction that use some memory, both included."""

    storage: Storage
    first: int
    last: int


def find_lifetimes(
    uses: Sequence[Iterable[Storage]],
    inputs: Iterable[Storage],
    outputs: Iterable[Storage],
    loops: Iterable[tuple[int, int]],
) -> list[Lifetime]:
    """Return the lifetimes of all planned memory, ordered by first use.

    ``uses`` lists the memory that each instruction reads or writes. ``loops`` are pairs
    of a loop's first and last instruction.

    Inputs exist before the first instruction, and outputs after the last one. State
    exists all the time. Memory that is in use when a loop begins stays in use until the
    loop ends, since a later round may read it.
    """
    end = len(uses)
    found: dict[Storage, Lifetime] = {}
    for storage in inputs:
        _add_use(found, storage, -1, end)
    for position, storages in enumerate(uses):
        for storage in storages:
            _add_use(found, storage, position, end)
    for storage in outputs:
        _add_use(found, storage, end, end)
    # longest loop first: an outer loop is longer than its inner loops
    ordered = sorted(loops, key=lambda loop: loop[1] - loop[0], reverse=True)
    _extend_over_loops(found, ordered)
    return list(found.values())


def _add_use(
    found: dict[Storage, Lifetime], storage: Storage, position: int, end: int
) -> None:
    """Let the lifetime of a storage include the instruction at ``position``.

    ``end`` is the position after the last instruction.
    """
    if not storage.is_planned or storage.nbytes == 0:
        return
    if storage.home is Home.STATE:
        found.setdefault(storage, Lifetime(storage, -1, end))
        return
    known = found.setdefault(storage, Lifetime(storage, position, position))
    known.last = max(known.last, position)


def _extend_over_loops(
    found: Mapping[Storage, Lifetime], loops: Iterable[tuple[int, int]]
) -> None:
    """Extend lifetimes that enter a loop to the end of the loop.

    ``loops`` lists outer loops first, so that inner loops see the extended lifetimes.
    """
    for first, last in loops:
        for lifetime in found.values():
            if lifetime.first < first <= lifetime.last:
                lifetime.last = max(lifetime.last, last)
