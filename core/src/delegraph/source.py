"""Finds the line of the user's program that a node comes from."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

__all__ = [
    "Source",
    "innermost",
    "source_of",
    "stack_of",
]

_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)\n(?:[ \t]+(.*))?')
_LIBRARY = re.compile(r"[\\/](?:site-packages|dist-packages)[\\/]torch[\\/]")
_STANDARD = os.path.join(sysconfig.get_path("stdlib"), "")
_GENERATED = "<eval_with_key>"
"""What torch.fx calls the code that it generates."""


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the user's program: the innermost frame that is neither torch's nor Python's own."""

    file: str
    line: int
    function: str
    code: str

    @property
    def place(self) -> str:
        """``file:line``; the file is relative to the working directory if it lies in it."""
        return f"{_relative(self.file, os.getcwd())}:{self.line}"

    def __str__(self) -> str:
        return f"{self.place}, in {self.function}: {self.code}"


def source_of(node: Any) -> Source | None:
    """The user's line from which ``node`` comes, read from ``node.meta["stack_trace"]``; None if it is not known."""
    return _innermost(node.meta.get("stack_trace") or "")


def stack_of(node: Any) -> tuple[Source, ...]:
    """All frames of ``node``, the outermost first, torch's layers included; ``source_of`` is one of them."""
    return _stack(node.meta.get("stack_trace") or "")


@lru_cache(maxsize=1024)
def _relative(file: str, folder: str) -> str:
    """The file's path, relative to the folder if it lies in it."""
    inside = os.path.abspath(file).startswith(folder + os.sep)
    return os.path.relpath(file) if inside else file


@lru_cache(maxsize=4096)
def _innermost(trace: str) -> Source | None:
    """The user's line in a trace as text."""
    frames = [(file, int(line), function, code) for file, line, function, code in _FRAME.findall(trace)]
    # a program made by torch's or Python's code alone has no user's line: take what there is
    return innermost(frames) or innermost(frames, lambda file: not file.startswith(_GENERATED))


@lru_cache(maxsize=4096)
def _stack(trace: str) -> tuple[Source, ...]:
    """All frames in a trace as text, without generated code."""
    frames = ((file, int(line), function, code.strip()) for file, line, function, code in _FRAME.findall(trace))
    return tuple(Source(*frame) for frame in frames if not frame[0].startswith(_GENERATED))


def _is_users(file: str) -> bool:
    """Whether a file is neither torch's nor Python's own, nor generated."""
    if file.startswith(_STANDARD) and "-packages" not in file:
        return False
    return not _LIBRARY.search(file) and not file.startswith(_GENERATED)


def innermost(frames: Iterable[tuple[str, int, str, str]], accepts: Callable[[str], bool] = _is_users) -> Source | None:
    """The last of ``frames`` (file, line, function, code) whose file ``accepts`` takes; None if it takes none.

    By default these are files that are neither torch's nor Python's own.
    """
    fitting = [frame for frame in frames if accepts(frame[0])]
    return Source(*fitting[-1][:3], fitting[-1][3].strip()) if fitting else None
