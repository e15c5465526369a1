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
        self._claimed: set[tuple[int, int]] = set()

    def claim_first_write(self, offset: int, size: int) -> bool:
        """Return True for the first call with this range of bytes, and False later.

        The first method that is loaded writes the first values of buffers. Methods that
        are loaded later must not overwrite the buffers.
        """
        is_first = (offset, size) not in self._claimed
        self._claimed.add((offset, size))
        return is_first
