"""Garbage collection pauses while programs are lowered: graphs are full of cycles that live on, not of garbage."""

from __future__ import annotations

import gc
import threading
from contextlib import AbstractContextManager


class _Pause:
    """The collector belongs to the process, and lowerings may run in several threads at once.

    So the first one to enter switches it off, and the last one to leave restores what the first one found.
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


_PAUSE = _Pause()


def collection_suspended() -> AbstractContextManager[None]:
    """No garbage collection inside: one full collection costs more than a lowering."""
    return _PAUSE
