"""Calls of an engine: requests for several threads, counters, and values inside."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Any

import torch
from delegraph.runtime import Delegate, Inside, Spent


class Counting:
    """A ``ProfiledDelegate`` for an engine whose counters only grow: it tells by how
    much since the last reading.

    ``delegate``: is called. ``read(calls)`` returns the engine's counters after so many
    calls: delegate debug identifier, or None, and seconds so far. Several rows of one
    identifier are added. ``borders``: seconds so far by ``Border``.
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
        self._told: dict[Any, float] = {}

    def __call__(
        self, *args: torch.Tensor | int | float | bool
    ) -> tuple[tuple[Any, ...], Callable[[], Spent]]:
        return self._delegate(*args), partial(self._spent, next(self._calls))

    def _spent(self, calls: int) -> Spent:
        seconds = Counter[Any](self._borders)
        for identifier, so_far in self._read(calls):
            seconds[identifier] += so_far  # type: ignore[assignment]
        # rounded counters may seem to fall: then nothing was spent, and the next
        # readings make up for it
        told = {
            identifier: max(so_far, self._told.get(identifier, 0.0))
            for identifier, so_far in seconds.items()
        }
        before = self._told
        self._told = told
        return {
            identifier: {"seconds": now - before.get(identifier, 0.0)}
            for identifier, now in told.items()
        }


class Observing:
    """An ``ObservedDelegate``, of a delegate that returns values inside of it behind
    its outputs.

    ``identifiers``: the delegate debug identifier of each such value, in order.
    """

    def __init__(self, delegate: Delegate, identifiers: Iterable[Any]) -> None:
        self._delegate = delegate
        self._identifiers = list(identifiers)

    def __call__(
        self, *args: torch.Tensor | int | float | bool
    ) -> tuple[tuple[Any, ...], Inside]:
        values = self._delegate(*args)
        outputs = len(values) - len(self._identifiers)
        inside = zip(self._identifiers, values[outputs:], strict=True)
        return values[:outputs], {identifier: [value] for identifier, value in inside}


class Pool:
    """What an engine needs for each call at a time, made when all others are in use,
    for a ``thread_safe`` runtime.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self.idle: deque[Any] = deque()
        """Those that are not in use; that of the last call is the last."""

    @contextmanager
    def one(self) -> Iterator[Any]:
        """One that no other call uses now."""
        try:
            taken = self.idle.pop()
        except IndexError:
            taken = self._make()
        yield taken
        # not after an error, which may have left it in any state
        self.idle.append(taken)
