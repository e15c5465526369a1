"""Hold the memory that the methods of a program share on this host."""

from __future__ import annotations

import threading
from typing import Any

from .tensors import reserve


class SharedMemory:
    """The shared bytes, and the lock that calls of these methods hold."""

    def __init__(self, size: int) -> None:
        self.bytes: Any = reserve(size).numpy()
        self.lock = threading.RLock()
        self._started: set[tuple[int, int]] = set()

    def starts(self, offset: int, size: int) -> bool:
        """Return whether these bytes get their first content now.

        Other methods find the content that the first one left there.
        """
        before = len(self._started)
        self._started.add((offset, size))
        return len(self._started) > before
