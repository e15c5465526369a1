"""Garbage collection is paused while programs are lowered and drawn.

Their graphs are full of cycles, all still in use.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.Lock()
_pauses: list[tuple[int, bool]] = []
"""One entry for each running block of ``pause_collection``: its thread, and whether collection was on when it began.

The first block switches collection off. A later one finds it on only if the user switched it on meanwhile.
"""


@contextmanager
def pause_collection() -> Iterator[None]:
    """A block without garbage collection: one full collection takes longer than a whole lowering.

    The collector belongs to the process, and blocks of several threads may overlap. The last block that ends switches
    collection on again, if it was on before the first.
    """
    with _LOCK:
        _pauses.append((threading.get_ident(), gc.isenabled()))
        gc.disable()
    try:
        yield
    finally:
        with _LOCK:
            # the last entry, whichever block made it: the first one has to stay until the last block ends
            _, enabled = _pauses.pop()
            _restore(enabled)


def _restore(enabled: bool) -> None:
    """End one pause. ``enabled``: whether collection was on when that pause began."""
    # While other blocks run, collection stays off. The first entry is removed last: it remembers what to restore.
    if enabled and _pauses:
        _pauses[0] = _pauses[0][0], True
    elif enabled:
        gc.enable()


def _after_fork() -> None:
    """Remove the entries of other threads: they do not exist in the forked process, so their blocks never end."""
    global _LOCK
    _LOCK = threading.Lock()
    enabled = any(was_enabled for _, was_enabled in _pauses)  # before the first pause, or meanwhile by the user
    gone = [entry for entry in _pauses if entry[0] != threading.get_ident()]
    for entry in gone:
        _pauses.remove(entry)
    if gone:
        _restore(enabled)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)
