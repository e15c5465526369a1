"""Helpers for calls of an engine: ``Counting`` for profiles, ``Pool`` for threads."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Any

import torch
from delegraph.runtime import Delegate, Spent


class Counting:
    """A ``ProfiledDelegate`` for an engine whose counters add up all calls so far.

    The seconds of one call are the difference between two readings. ``read(calls)``
    returns the engine's counters after this number of calls of ``delegate``: pairs of a
    delegate debug identifier, or None, and the seconds so far. Several pairs of one
    identifier are added. ``borders``: ``Border`` -> the seconds so far of converting
    that input or output.
    """

    def __init__(
        self,
        delegate: Delegate,
        read: Callable[[int], Iterable[tuple[Any, float]]],
        borders: Mapping[Any, float] = MappingProxyType({}),
    ) -> None:
        self._delegate = delegate
        self._read = read
        self._borders = borders
        self._calls = count(1)
        self._last_totals: dict[Any, float] = {}

    def __call__(
        self, *args: torch.Tensor | int | float | bool
    ) -> tuple[tuple[Any, ...], Callable[[], Spent]]:
        return self._delegate(*args), partial(self._spent, next(self._calls))

    def _spent(self, calls: int) -> Spent:
        """Return the seconds since the last reading, after ``calls`` calls in all."""
        seconds = Counter[Any](self._borders)
        for identifier, so_far in self._read(calls):
            seconds[identifier] += so_far  # type: ignore[assignment]
        # Rounded counters may seem to fall. Then nothing was spent, and the next readings
        # are compared with the highest total.
        totals = {
            identifier: max(so_far, self._last_totals.get(identifier, 0.0))
            for identifier, so_far in seconds.items()
        }
        before = self._last_totals
        self._last_totals = totals
        return {
            identifier: {"seconds": total - before.get(identifier, 0.0)}
            for identifier, total in totals.items()
        }


class Pool:
    """A pool of an engine's objects, such as requests. Each serves one call at a time.

    ``make`` makes another one when all are in use.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self.idle: deque[Any] = deque()
        """The objects that are not in use; the one of the last call is the last."""

    @contextmanager
    def one(self) -> Iterator[Any]:
        """Yield an object that no other call uses during the block."""
        # ``pop`` is atomic, so two threads never get the same object
        try:
            item = self.idle.pop()
        except IndexError:
            item = self._make()
        yield item
        # an object whose call failed is dropped, because its state is unknown
        self.idle.append(item)
