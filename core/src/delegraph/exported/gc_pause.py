"""Garbage collection is paused while programs are lowered and drawn.

Their graphs are full of cycles, all still in use.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_LOCK = threading.Lock()


@dataclass(eq=False)
class _Pause:
    """One running block of ``pause_collection``: its thread, and whether collection was on when it began."""

    thread: int
    enabled: bool


_pauses: list[_Pause] = []
"""The running blocks. The first switched collection off; a later one finds it on only if the user switched it on."""


@contextmanager
def pause_collection() -> Iterator[None]:
    """A block without garbage collection: one full collection takes longer than a whole lowering.

    The collector belongs to the process, and blocks of several threads may overlap. The last block that ends switches
    collection on again, if it was on before the first.
    """
    pause = _Pause(threading.get_ident(), gc.isenabled())
    with _LOCK:
        _pauses.append(pause)
        gc.disable()
    try:
        yield
    finally:
        with _LOCK:
            _pauses.remove(pause)
            _restore(pause.enabled)


def _restore(enabled: bool) -> None:
    """Switch collection on if ``enabled``; while other blocks run, it is left to the last of them."""
    if enabled and _pauses:
        _pauses[0].enabled = True
    elif enabled:
        gc.enable()


def _after_fork() -> None:
    """Remove the entries of other threads: they do not exist in the forked process, so their blocks never end."""
    global _LOCK
    _LOCK = threading.Lock()
    enabled = any(pause.enabled for pause in _pauses)  # before the first pause, or meanwhile by the user
    gone = [pause for pause in _pauses if pause.thread != threading.get_ident()]
    for pause in gone:
        _pauses.remove(pause)
    if gone:
        _restore(enabled)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)
