"""Light modules must not import torch or numpy: who does, and by which line."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from types import FrameType, ModuleType, TracebackType

import pluggy

from . import records
from .records import Fault, Status

HEAVY = ("torch", "numpy")


class HeavyImports:
    """Watches imports while a light module is loaded. A finder that finds nothing: it sees who asks for what.

    What this process imported before is not seen; ``delegraph doctor`` therefore asks in a fresh interpreter.
    """

    def __init__(self) -> None:
        self._before = {m for m in HEAVY if m in sys.modules}
        self._lines: dict[str, list[str]] = {}

    def __enter__(self) -> HeavyImports:
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, traceback: TracebackType | None) -> None:
        sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """Remember the lines that led to the import of a heavy module; whoever else looks for it does not count."""
        caller = sys._getframe(1)
        if name in HEAVY and caller.f_code.co_filename.startswith("<frozen importlib"):
            self._lines.setdefault(name, _importing_lines(caller))

    def warning(self) -> Fault | None:
        """For the first heavy module that was imported (torch brings numpy), or None."""
        found = [m for m in (*self._lines, *HEAVY) if m in sys.modules and m not in self._before]
        if not found:
            return None
        lines = self._lines.get(found[0])
        error = f"its light module imports {found[0]}, which slows every listing down"
        error += f" ({' -> '.join(lines)})" if lines else ""
        return Fault(Status.OK, error, "for its authors: import it in the modules that the targets name")


def _importing_lines(frame: FrameType | None) -> list[str]:
    """The lines from the light module's to the one that imports, outermost first; those of delegraph are left out."""
    lines: list[str] = []
    while frame is not None and frame.f_globals.get("__name__") != f"{__package__}.discovery":
        file = frame.f_code.co_filename
        if not file.startswith("<frozen importlib"):
            lines.insert(0, f"{file}:{frame.f_lineno}")
        frame = frame.f_back
    return [line for line in lines if not line.startswith(_CALLERS)]


_CALLERS = tuple(os.path.dirname(module.__file__ or "") + os.sep for module in (records, pluggy, importlib))
"""Folders of those that import a plugin or call its hooks: not the plugin's own lines."""
