"""Assign offsets in memory, one storage after the other.

Each storage gets the smallest gap between the storages that are in use at the same time.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .lifetimes import Lifetime
from .storage import Storage

ALIGNMENT = 16
"""Bytes that planned memory is aligned to, as stock kernels and delegates expect."""


def _by_size(lifetime: Lifetime) -> tuple[int, ...]:
    """Return the key for sorting by size, the largest first."""
    return -lifetime.storage.nbytes, lifetime.first, lifetime.last


def _by_first_use(lifetime: Lifetime) -> tuple[int, ...]:
    """Return the key for sorting by first use; with equal first use, the largest first."""
    return lifetime.first, -lifetime.storage.nbytes, lifetime.last


_ORDERS = (_by_size, _by_first_use)
"""The planner tries both orders of storages, and keeps the plan with less memory.

For most models, the order by size is the better one. For chains of Inception blocks,
the order by first use saves a third of the memory.
"""


class MemoryPlan(NamedTuple):
    """The offset of each storage and the size of each memory, in bytes."""

    offsets: dict[Storage, int]
    sizes: list[int]


class _Placed(NamedTuple):
    """The bytes from ``start`` to ``end``, in use from instruction ``first`` to ``last``."""

    start: int
    end: int
    first: int
    last: int


def plan_memory(
    lifetimes: Iterable[Lifetime], alignment: int = ALIGNMENT
) -> MemoryPlan:
    """Return offsets of all storages that have none yet, and the size of each memory.

    Memory 0 is never used and has size 0.
    """
    by_memory: dict[int, list[Lifetime]] = {}
    offsets: dict[Storage, int] = {}
    for lifetime in lifetimes:
        if lifetime.storage.offset is None:
            by_memory.setdefault(lifetime.storage.memory_id, []).append(lifetime)
    highest_id = max(by_memory, default=1)
    sizes = [0] * (highest_id + 1)
    for memory_id, group in by_memory.items():
        plans = [
            _plan_one_memory(sorted(group, key=order), alignment) for order in _ORDERS
        ]
        smallest = min(plans, key=lambda plan: plan.size)
        sizes[memory_id] = smallest.size
        offsets.update(smallest.offsets)
    return MemoryPlan(offsets, sizes)


class _OneMemory(NamedTuple):
    """The offsets of storages in one memory, and the memory's size."""

    offsets: dict[Storage, int]
    size: int


def _plan_one_memory(ordered: Sequence[Lifetime], alignment: int) -> _OneMemory:
    """Assign offsets in one memory, in the order of ``ordered``."""
    offsets: dict[Storage, int] = {}
    placed: list[_Placed] = []
    for lifetime in ordered:
        in_use = [
            other
            for other in placed
            if other.first <= lifetime.last and lifetime.first <= other.last
        ]
        size = lifetime.storage.nbytes
        offset = _best_gap(in_use, size, alignment)
        offsets[lifetime.storage] = offset
        new = _Placed(offset, offset + size, lifetime.first, lifetime.last)
        bisect.insort(placed, new)
    return _OneMemory(offsets, size=max((other.end for other in placed), default=0))


def _best_gap(in_use: Sequence[_Placed], size: int, alignment: int) -> int:
    """Return the aligned start of the smallest gap that has ``size`` bytes.

    A gap lies before or between the ranges ``in_use``, which are sorted by start. If no
    gap is large enough, return the first aligned byte after the last range.
    """
    best_start: int | None = None
    best_room = 0
    end = 0
    for other in in_use:
        room = other.start - end
        if room >= size and (best_start is None or room < best_room):
            best_start = end
            best_room = room
        padding = -other.end % alignment
        end = max(end, other.end + padding)
    return end if best_start is None else best_start
