"""Places in memory: the largest first, each in the smallest gap between what is in use
at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from .lifetimes import Lifetime
from .storage import Storage

ALIGNMENT = 16
"""Bytes that every place is aligned to, as kernels and delegates of the stock runtime
expect.
"""

_Order = Callable[[Lifetime], tuple[int, ...]]
_ORDERS: tuple[_Order, ...] = (
    lambda t: (-t.storage.nbytes, t.first, t.last),
    lambda t: (-(t.last - t.first + 1) * t.storage.nbytes, -t.storage.nbytes, t.first),
    lambda t: (t.first - t.last, -t.storage.nbytes, t.first),
    lambda t: (t.first, -t.storage.nbytes, t.last),
)
"""Greedy placement depends on the order: all of these are tried, and the smallest
memory is taken.
"""


def plan_memory(
    lifetimes: Iterable[Lifetime], alignment: int = ALIGNMENT
) -> tuple[dict[Storage, int], list[int]]:
    """(offset of each storage, size of each memory from memory 0, which is never used),
    both in bytes.

    Storages whose offset is known are left out.
    """
    by_memory: dict[int, list[Lifetime]] = {}
    offsets: dict[Storage, int] = {}
    for lifetime in lifetimes:
        if lifetime.storage.offset is None:
            by_memory.setdefault(lifetime.storage.memory_id, []).append(lifetime)
    sizes = [0] * (1 + max(by_memory, default=1))
    for memory_id, group in by_memory.items():
        plans = [_place(sorted(group, key=order), alignment) for order in _ORDERS]
        places, sizes[memory_id] = min(plans, key=lambda plan: plan[1])
        offsets.update(places)
    return offsets, sizes


def _place(
    ordered: Sequence[Lifetime], alignment: int
) -> tuple[dict[Storage, int], int]:
    offsets: dict[Storage, int] = {}
    placed: list[tuple[int, int, int, int]] = []
    """(offset, end, first, last) in the order of offsets."""
    for lifetime in ordered:
        neighbours = [
            p for p in placed if p[2] <= lifetime.last and lifetime.first <= p[3]
        ]
        size = lifetime.storage.nbytes
        offset = _best_gap(neighbours, size, alignment)
        offsets[lifetime.storage] = offset
        placed.append((offset, offset + size, lifetime.first, lifetime.last))
        placed.sort()
    return offsets, max((end for _, end, _, _ in placed), default=0)


def _best_gap(
    neighbours: Sequence[tuple[int, int, int, int]], size: int, alignment: int
) -> int:
    """Start of the smallest gap between ``neighbours`` (by offset) that holds ``size``;
    behind all if there is none.
    """
    best = -1
    best_room = -1
    end = 0
    for start, stop, _, _ in neighbours:
        room = start - end
        if room >= size and (best < 0 or room < best_room):
            best = end
            best_room = room
        end = max(end, stop + -stop % alignment)
    return end if best < 0 else best
