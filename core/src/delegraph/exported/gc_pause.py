"""Garbage collection pauses while programs are lowered and drawn: graphs are full of cycles that live on."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.Lock()
_were_enabled: list[bool] = []
"""Whether collection was on when each caller entered, in that order; later ones find it on if the user wants it so."""


@contextmanager
def pause_collection() -> Iterator[None]:
    """No garbage collection inside: one full collection costs more than a lowering.

    The collector belongs to the process, and several threads may lower: the last one to leave switches it on again.
    """
    with _LOCK:
        _were_enabled.append(gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _LOCK:
            enabled = _were_enabled.pop()
            if enabled and _were_enabled:
                _were_enabled[0] = True
            elif enabled:
                gc.enable()
