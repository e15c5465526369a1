"""Names the plugin that a command is waiting for.

A light module that never ends would hang every command in silence.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from ..command import terminal

PATIENCE = 1.0
"""How many seconds the import of a light module may take before its plugin is named."""


@contextlib.contextmanager
def watchdog() -> Iterator[None]:
    """A block in which a line on stderr names each plugin that takes longer than PATIENCE to import."""
    over = threading.Event()
    watching = threading.Thread(target=_watch, args=(over,), name="delegraph watchdog", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def _watch(over: threading.Event) -> None:
    """Watch for slow imports until ``over`` is set; runs in a thread of its own."""
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
