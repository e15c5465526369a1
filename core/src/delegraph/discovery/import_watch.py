"""Light modules are light: who imports torch or numpy, and by which line; who takes long; who is at it now."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, ModuleType, TracebackType

import pluggy

from .. import errors
from .record import Fault, PluginRecord, Status

HEAVY = ("torch", "numpy")
SLOW = 0.5
"""Seconds. All plugins are imported by every command: one that takes longer is felt in each."""
_underway: dict[int, tuple[PluginRecord, float]] = {}
_teller: Callable[[PluginRecord | None], None] | None = None


def underway() -> list[tuple[PluginRecord, float]]:
    """The plugins whose light modules some thread is importing now, each with the ``time.monotonic()`` of its start."""
    return list(_underway.values())


@contextmanager
def imports_told(tell: Callable[[PluginRecord | None], None]) -> Iterator[None]:
    """Call ``tell`` with the plugin whose light module is about to be imported, and with None when that is over."""
    global _teller
    before, _teller = _teller, tell
    try:
        yield
    finally:
        _teller = before


def _tell(record: PluginRecord | None) -> None:
    if _teller is not None:
        _teller(record)


class ImportWatch:
    """Watches imports while a light module is loaded. A finder that finds nothing: it sees who asks for what.

    What this process imported before is not seen; ``delegraph doctor`` therefore asks in a fresh interpreter.
    """

    def __init__(self, record: PluginRecord) -> None:
        self._record = record
        self._before = {m for m in HEAVY if m in sys.modules}
        self._lines: dict[str, list[str]] = {}
        self._begun = self._seconds = 0.0

    def __enter__(self) -> ImportWatch:
        self._begun = time.monotonic()
        _underway[threading.get_ident()] = self._record, self._begun
        sys.meta_path.insert(0, self)
        _tell(self._record)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, traceback: TracebackType | None) -> None:
        _tell(None)
        sys.meta_path.remove(self)
        _underway.pop(threading.get_ident(), None)
        self._seconds = time.monotonic() - self._begun

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """Remember the lines that led to the import of a heavy module; whoever else looks for it does not count."""
        caller = sys._getframe(1)
        if name in HEAVY and caller.f_code.co_filename.startswith("<frozen importlib"):
            self._lines.setdefault(name, _importing_lines(caller))

    def warnings(self) -> list[Fault]:
        """For the first heavy module that was imported (torch brings numpy), or for the time that the import took."""
        found = [m for m in (*self._lines, *HEAVY) if m in sys.modules and m not in self._before]
        if found:
            lines = self._lines.get(found[0])
            error = f"its light module imports {found[0]}, which slows every listing down"
            error += f" ({' -> '.join(lines)})" if lines else ""
            return [Fault(Status.OK, error, "for its authors: import it in the modules that the targets name")]
        if self._seconds <= SLOW:
            return []
        error = f"its light module took {self._seconds:.1f} s to import, which slows every listing down"
        return [Fault(Status.OK, error, "for its authors: do the work in the modules that the targets name")]


def _importing_lines(frame: FrameType | None) -> list[str]:
    """The lines from the light module's to the one that imports, outermost first; those of delegraph are left out."""
    lines: list[str] = []
    while frame is not None and frame.f_globals.get("__name__") != f"{__package__}.entry_points":
        file = frame.f_code.co_filename
        if not file.startswith("<frozen importlib"):
            lines.insert(0, f"{file}:{frame.f_lineno}")
        frame = frame.f_back
    return [line for line in lines if not line.startswith(_CALLERS)]


_CALLERS = tuple(os.path.dirname(module.__file__ or "") + os.sep for module in (errors, pluggy, importlib))
"""Folders of those that import a plugin or call its hooks: not the plugin's own lines."""
