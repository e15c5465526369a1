"""The line of the user's program that a node comes from."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

__all__ = [
    "Source",
    "source_of",
]

_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)\n(?:[ \t]+(.*))?')
_LIBRARY = re.compile(r"[\\/](?:site-packages|dist-packages)[\\/]torch[\\/]")
_GENERATED = "<eval_with_key>"
"""What torch.fx calls the code that it generates."""


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the user's program: the innermost frame that is not torch's own."""

    file: str
    line: int
    function: str
    code: str

    @property
    def place(self) -> str:
        """``file:line``; the file is relative to the working directory if it is inside it."""
        inside = os.path.abspath(self.file).startswith(os.getcwd() + os.sep)
        return f"{os.path.relpath(self.file) if inside else self.file}:{self.line}"

    def __str__(self) -> str:
        return f"{self.place}, in {self.function}: {self.code}"


def source_of(node: Any) -> Source | None:
    """The user's line that made ``node``, from ``node.meta["stack_trace"]``."""
    return _innermost(node.meta.get("stack_trace") or "")


@lru_cache(maxsize=4096)
def _innermost(trace: str) -> Source | None:
    frames = [f for f in _FRAME.findall(trace) if not f[0].startswith(_GENERATED)]
    user = [f for f in frames if not _LIBRARY.search(f[0])] or frames
    return Source(user[-1][0], int(user[-1][1]), user[-1][2], user[-1][3].strip()) if user else None
