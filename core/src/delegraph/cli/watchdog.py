"""Prints which plugin a command waits for. Otherwise a light module that hangs would hang each command silently."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from ..command import terminal

PATIENCE = 1.0
"""Seconds of an import after which its plugin is named."""


@contextlib.contextmanager
def watchdog() -> Iterator[None]:
    """A block in which a line on stderr names each plugin whose import takes longer than PATIENCE."""
    over = threading.Event()
    watching = threading.Thread(target=_watch, args=(over,), name="delegraph watchdog", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def _watch(over: threading.Event) -> None:
    """Name slow imports until ``over`` is set, each once. Runs in a thread of its own."""
    named: set[float] = set()  # the begin of each import that was named, which identifies the import
    while not over.wait(PATIENCE / 4):
        from ..discovery.import_watch import underway  # imported late: not every command reads plugins
        from ..discovery.record import without

        for record, begun in underway():
            if begun not in named and time.monotonic() - begun > PATIENCE:
                named.add(begun)
                terminal.tell(
                    f"waiting for plugin {record.name} of {record.owner}: importing its light module "
                    f"({record.location}) takes longer than {PATIENCE:g} s; {without(record)}"
                )
