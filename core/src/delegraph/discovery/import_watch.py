"""Watches the import of light modules: which imports torch or numpy, and by which line; which takes long or hangs."""

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
"""In seconds. Every command imports all light modules, so a slow one is felt in each command."""
_underway: dict[int, tuple[PluginRecord, float]] = {}
_teller: Callable[[PluginRecord | None], None] | None = None


def underway() -> list[tuple[PluginRecord, float]]:
    """Plugins whose light module some thread is importing now, with the ``time.monotonic()`` at which it began."""
    return list(_underway.values())


@contextmanager
def imports_told(tell: Callable[[PluginRecord | None], None]) -> Iterator[None]:
    """A block in which ``tell`` is called with a plugin before its light module is imported, and with None after it."""
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
    """Watches imports while a light module is loaded.

    It is a finder on ``sys.meta_path`` that never finds anything, but sees who asks for which module. Modules that were
    imported before are not asked for; that is why ``delegraph doctor`` uses a fresh interpreter.
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
        """Note the lines that lead to the import of a heavy module.

        Mere look-ups by others than ``import`` do not count.
        """
        caller = sys._getframe(1)
        if name in HEAVY and caller.f_code.co_filename.startswith("<frozen importlib"):
            self._lines.setdefault(name, _importing_lines(caller))

    def warnings(self) -> list[Fault]:
        """A warning for the first heavy module that was imported (torch imports numpy), or else for a slow import."""
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
    """The lines from the light module to the import, outermost first, without those of delegraph and pluggy."""
    lines: list[str] = []
    while frame is not None and frame.f_globals.get("__name__") != f"{__package__}.entry_points":
        file = frame.f_code.co_filename
        if not file.startswith("<frozen importlib"):
            lines.insert(0, f"{file}:{frame.f_lineno}")
        frame = frame.f_back
    return [line for line in lines if not line.startswith(_CALLERS)]


_CALLERS = tuple(os.path.dirname(module.__file__ or "") + os.sep for module in (errors, pluggy, importlib))
"""Folders of code that imports a plugin or calls its hooks, and so is not the plugin's."""
