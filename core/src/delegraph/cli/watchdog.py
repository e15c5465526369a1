"""Names the plugin that a command waits for: one whose light module never ends would hang every command in silence."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from ..command import terminal

PATIENCE = 1.0
"""Seconds that a light module may take unnamed."""


@contextlib.contextmanager
def watchdog() -> Iterator[None]:
    """Write a line to stderr for each plugin that takes longer than PATIENCE to import."""
    over = threading.Event()
    watching = threading.Thread(target=_watch, args=(over,), name="delegraph watchdog", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def _watch(over: threading.Event) -> None:
    named: set[float] = set()
    while not over.wait(PATIENCE / 4):
        from ..discovery.import_watch import underway  # not every command reads plugins
        from ..discovery.record import without

        for record, begun in underway():
            if begun not in named and time.monotonic() - begun > PATIENCE:
                named.add(begun)
                terminal.tell(
                    f"waiting for plugin {record.name} of {record.owner}: importing its light module "
                    f"({record.location}) takes longer than {PATIENCE:g} s; {without(record)}"
                )
