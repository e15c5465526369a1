"""Memory that the methods of a program share on this host."""

from __future__ import annotations

import threading
from typing import Any

from .tensors import reserve


class SharedMemory:
    """The bytes, the lock that calls of these methods hold, and what was brought there
    before the first of them.
    """

    def __init__(self, size: int) -> None:
        self.bytes: Any = reserve(size).numpy()
        self.turn = threading.RLock()
        self._started: set[tuple[int, int]] = set()

    def starts(self, offset: int, size: int) -> bool:
        """Whether these bytes get their first content now: the next method finds what
        this one has left there.
        """
        before = len(self._started)
        self._started.add((offset, size))
        return len(self._started) > before
