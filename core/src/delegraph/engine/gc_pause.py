"""Cyclic garbage collection pauses while graphs are built: what they hold lives on, so a search is lost time."""

from __future__ import annotations

import gc
import threading
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


class _Suspension:
    """Garbage collection is off while somebody is inside; the state that the first one met comes back after the last.

    The collector is the process's, and lowerings may run in several threads.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._enabled = threading.Lock(), 0, False

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._enabled = gc.isenabled()
                gc.disable()
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._enabled:
                gc.enable()


_SUSPENSION = _Suspension()


def collection_suspended() -> AbstractContextManager[None]:
    """No garbage collection inside: one full collection costs more than a lowering."""
    return _SUSPENSION
