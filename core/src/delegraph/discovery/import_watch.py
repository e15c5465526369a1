"""Watches the import of light modules: finds those that import torch or numpy, and slow
ones.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Sequence
from types import FrameType, ModuleType, TracebackType

import pluggy

from .. import errors
from .record import Fault, Status

HEAVY = ("torch", "numpy")
SLOW = 0.5
"""Seconds after which an import counts as slow. Every command imports all light
modules, so each slow one matters.
"""


class ImportWatch:
    """A block around the import of a light module that records slow imports and imports
    of heavy modules.

    It is a finder on ``sys.meta_path`` that finds no module, but sees each import of
    one. It does not see imports of modules that are already loaded, which is why
    ``delegraph doctor`` uses a fresh interpreter.
    """

    def __init__(self) -> None:
        # were imported earlier, by somebody else
        self._before = {m for m in HEAVY if m in sys.modules}
        # heavy module -> the lines of the plugin that led to its import
        self._lines: dict[str, list[str]] = {}
        # time.monotonic() at the beginning; how long the block took
        self._begun = self._seconds = 0.0

    def __enter__(self) -> ImportWatch:
        """Begin to watch."""
        self._begun = time.monotonic()
        sys.meta_path.insert(0, self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: object,
        traceback: TracebackType | None,
    ) -> None:
        """Undo what ``__enter__`` did, and measure how long the block took."""
        sys.meta_path.remove(self)
        self._seconds = time.monotonic() - self._begun

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> None:
        """Record the lines that lead to the import of a heavy module ``name``.

        Returns None, which tells Python to ask the next finder. Python's import system
        calls this, but so does ``loading.find``, which only looks whether a module is
        installed: its calls are ignored.
        """
        caller = sys._getframe(1)
        if name in HEAVY and caller.f_code.co_filename.startswith("<frozen importlib"):
            self._lines.setdefault(name, _importing_lines(caller))

    def warnings(self) -> list[Fault]:
        """A warning for the first heavy module that was imported, else for a slow
        import; empty if all is well.

        One warning is enough: torch imports numpy, and both are slow.
        """
        # modules whose import was seen come first, in the order of their imports
        heavy = [
            m
            for m in (*self._lines, *HEAVY)
            if m in sys.modules and m not in self._before
        ]
        if heavy:
            lines = self._lines.get(heavy[0])
            error = (
                f"its light module imports {heavy[0]}, which slows every listing down"
            )
            error += f" ({' -> '.join(lines)})" if lines else ""
            return [
                Fault(
                    Status.OK,
                    error,
                    "for its authors: import it in the modules that the targets name",
                )
            ]
        if self._seconds <= SLOW:
            return []
        error = (
            f"its light module took {self._seconds:.1f} s to import, which slows every"
            " listing down"
        )
        return [
            Fault(
                Status.OK,
                error,
                "for its authors: do the work in the modules that the targets name",
            )
        ]


def _importing_lines(frame: FrameType | None) -> list[str]:
    """``file:line`` of each frame from the light module to the import, outermost first,
    without ``_CALLERS``.

    ``frame``: the frame that imports; the search goes outwards from there.
    """
    lines: list[str] = []
    # ``entry_points.load`` imports the light module; frames outside of it are not the
    # plugin's
    while (
        frame is not None
        and frame.f_globals.get("__name__") != f"{__package__}.entry_points"
    ):
        file = frame.f_code.co_filename
        if not file.startswith("<frozen importlib"):
            lines.insert(0, f"{file}:{frame.f_lineno}")
        frame = frame.f_back
    return [line for line in lines if not line.startswith(_CALLERS)]


_CALLERS = tuple(
    os.path.dirname(module.__file__ or "") + os.sep
    for module in (errors, pluggy, importlib)
)
"""Folders of delegraph, pluggy and importlib, which import plugins and call their
hooks.
"""
