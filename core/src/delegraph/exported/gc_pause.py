"""Garbage collection pauses while programs are lowered and drawn: graphs are full of cycles that live on."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.Lock()
_were_enabled: list[tuple[int, bool]] = []
"""Each caller's thread, and whether collection was on when it entered, in that order; later ones find it on if the user
wants it so."""


@contextmanager
def pause_collection() -> Iterator[None]:
    """No garbage collection inside: one full collection costs more than a lowering.

    The collector belongs to the process, and several threads may lower: the last one to leave switches it on again.
    """
    with _LOCK:
        _were_enabled.append((threading.get_ident(), gc.isenabled()))
        gc.disable()
    try:
        yield
    finally:
        with _LOCK:
            _, enabled = _were_enabled.pop()
            _leave(enabled)


def _leave(enabled: bool) -> None:
    """Collection was ``enabled`` when one entered who leaves: that is for the others to put back, if there are any."""
    if enabled and _were_enabled:
        _were_enabled[0] = _were_enabled[0][0], True
    elif enabled:
        gc.enable()


def _after_fork() -> None:
    """The other threads are not in the forked process and will never leave."""
    global _LOCK
    _LOCK = threading.Lock()
    enabled = any(was for _, was in _were_enabled)
    gone = [entry for entry in _were_enabled if entry[0] != threading.get_ident()]
    for entry in gone:
        _were_enabled.remove(entry)
    if gone:
        _leave(enabled)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)
