"""Finds the line of the user's program from which a node was traced."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

__all__ = [
    "Source",
    "innermost",
    "line_of",
    "source_of",
    "stack_of",
]

_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)\n(?:[ \t]+(.*))?')
_LIBRARY = re.compile(r"[\\/](?:site-packages|dist-packages)[\\/]torch[\\/]")
_STANDARD = os.path.join(sysconfig.get_path("stdlib"), "")
_OF_SELF = re.compile(r"^L\['self'\]\.?")
"""The prefix that torch.compile gives to the paths of modules."""
_GENERATED = "<eval_with_key>"
"""The file name that torch.fx gives to generated code."""


@dataclass(frozen=True, slots=True)
class Source:
    """A frame of a stack trace: file, line number, function, and the text of the line.

    ``module``: the path and class of the module that computes there, such as
    ``1.frac (FractionalMaxPool2d)``. It is "" if it is not known, and for a line of the
    model's own ``forward``.
    """

    file: str
    line: int
    function: str
    code: str
    module: str = ""

    @property
    def place(self) -> str:
        """The place as ``file:line``, relative to the working directory if possible.

        If the line belongs to torch, the module is the place, because it names the part
        of the user's model that called torch.
        """
        if self.module and not self.is_users:
            return f"module {self.module}"
        return f"{_relative(self.file, os.getcwd())}:{self.line}"

    @property
    def is_users(self) -> bool:
        """Whether the line belongs neither to torch nor to Python's library."""
        return _is_users(self.file)

    def __str__(self) -> str:
        """Return place, function or module, and code; of torch's lines, the place."""
        if self.module and not self.is_users:
            return self.place
        return f"{self.place}, in {self.module or self.function}: {self.code}"


def source_of(node: Any) -> Source | None:
    """Return the user's line that ``node`` was traced from, with the module, or None.

    It is the innermost frame of ``node.meta["stack_trace"]`` that belongs neither to
    torch nor to Python's library. If there is none, as in an ``nn.Sequential``, it is
    the innermost frame.
    """
    source = _innermost(node.meta.get("stack_trace") or "")
    if source is None:
        return None
    return replace(source, module=_module_of(node, not source.is_users))


def first_source(nodes: Iterable[Any]) -> Source | None:
    """Return the first known line of the user's program among those of ``nodes``."""
    return next(filter(None, map(source_of, nodes)), None)


def line_of(node: Any) -> Source | None:
    """Return ``source_of(node)``, but without the module if the line is the user's.

    So all modules of a repeated block have equal lines, by which amounts are added up.
    """
    source = source_of(node)
    if source is None or not source.is_users:
        return source
    return replace(source, module="")


def _module_of(node: Any, names_model: bool) -> str:
    """Return the path and the class of the innermost module that called ``node``.

    The model itself has no path: the result is its class if ``names_model``, else "".
    It is "" also if the module is not known.
    """
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path, kind = list(stack.values())[-1]
    # torch marks the second call of a module as "path@1"
    path = _OF_SELF.sub("", path).split("@")[0]
    name = (kind if isinstance(kind, str) else kind.__name__).rpartition(".")[2]
    if path:
        return f"{path} ({name})"
    return name if names_model else ""


def stack_of(node: Any) -> tuple[Source, ...]:
    """Return the frames of the stack trace of ``node``, the outermost first.

    Frames of code that torch.fx generated are left out. Empty without a stack trace.
    """
    return _stack(node.meta.get("stack_trace") or "")


@lru_cache(maxsize=1024)
def _relative(file: str, folder: str) -> str:
    """Return the path of ``file``, relative to ``folder`` if it is inside of it."""
    inside = os.path.abspath(file).startswith(folder + os.sep)
    return os.path.relpath(file, folder) if inside else file


@lru_cache(maxsize=4096)
def _innermost(trace: str) -> Source | None:
    """Return the frame that ``source_of`` describes, in the text of a stack trace."""
    frames = _stack(trace)
    return innermost(frames) or innermost(frames, lambda _: True)


@lru_cache(maxsize=4096)
def _stack(trace: str) -> tuple[Source, ...]:
    """Return the frames in the text of a stack trace, except those of generated code."""
    return tuple(
        Source(file, int(line), function, code.strip())
        for file, line, function, code in _FRAME.findall(trace)
        if not file.startswith(_GENERATED)
    )


def _is_users(file: str) -> bool:
    """Return whether a file is neither generated, nor torch's, nor Python's library."""
    # Packages count as the user's. Their folders, site-packages and dist-packages, lie
    # in that of Python's library.
    if file.startswith(_STANDARD) and "-packages" not in file:
        return False
    return not _LIBRARY.search(file) and not file.startswith(_GENERATED)


def innermost(
    frames: Iterable[Source], accepts: Callable[[str], bool] = _is_users
) -> Source | None:
    """Return the last of ``frames`` in a file that ``accepts`` accepts, or None.

    ``frames``: the outermost first. By default, files are accepted that belong neither
    to torch nor to Python's library.
    """
    accepted = [frame for frame in frames if accepts(frame.file)]
    return accepted[-1] if accepted else None
