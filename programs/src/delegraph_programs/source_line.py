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
    """A frame of a stack trace: file, number of the line, name of the function, and the
    line itself.

    ``module``: the module that computes there, as ``1.frac (FractionalMaxPool2d)``; ""
    if it is not known, and for a line of the model's own ``forward``.
    """

    file: str
    line: int
    function: str
    code: str
    module: str = ""

    @property
    def place(self) -> str:
        """``file:line``; the path is relative to the working directory if the file is
        inside of it.

        If the line belongs to torch, the module is the place: it says which part of the
        user's model called torch.
        """
        if self.module and not self.is_users:
            return f"module {self.module}"
        return f"{_relative(self.file, os.getcwd())}:{self.line}"

    @property
    def is_users(self) -> bool:
        """Whether the line belongs neither to torch nor to Python's library."""
        return _is_users(self.file)

    def __str__(self) -> str:
        if self.module and not self.is_users:
            return self.place
        return f"{self.place}, in {self.module or self.function}: {self.code}"


def source_of(node: Any) -> Source | None:
    """Return the user's line from which ``node`` was traced, with the module; None if
    the line is not known.

    The line is that of the innermost frame of ``node.meta["stack_trace"]`` that belongs
    neither to torch nor to Python's library. If all frames belong to these, as in an
    ``nn.Sequential``, it is the innermost frame.
    """
    source = _innermost(node.meta.get("stack_trace") or "")
    if source is None:
        return None
    return replace(source, module=_module_of(node, not source.is_users))


def line_of(node: Any) -> Source | None:
    """Return ``source_of(node)``, equal for all modules that run the same line of the
    user's.

    Amounts are added up by line: a line of a repeated block counts once, with the sum
    of all its modules.
    """
    source = source_of(node)
    if source is None or not source.is_users:
        return source
    return replace(source, module="")


def _module_of(node: Any, names_model: bool) -> str:
    """Return the path and the class of the innermost module that called ``node``; "" if
    it is not known.

    The model itself has no path. Its class is returned if ``names_model``, else "".
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
    """All frames of the stack trace of ``node``, the outermost first; empty if the node
    has no stack trace.

    Frames of torch are included, those of code that torch.fx generated are not.
    """
    return _stack(node.meta.get("stack_trace") or "")


@lru_cache(maxsize=1024)
def _relative(file: str, folder: str) -> str:
    """The file's path, relative to ``folder`` (the working directory) if the file is
    inside of it.
    """
    inside = os.path.abspath(file).startswith(folder + os.sep)
    return os.path.relpath(file) if inside else file


@lru_cache(maxsize=4096)
def _innermost(trace: str) -> Source | None:
    """The user's line in a stack trace, given as text; None if it has no usable frame."""
    frames = [
        (file, int(line), function, code)
        for file, line, function, code in _FRAME.findall(trace)
    ]
    # without a frame of the user's, as in programs that torch itself builds, take the
    # innermost other frame
    return innermost(frames) or innermost(
        frames, lambda file: not file.startswith(_GENERATED)
    )


@lru_cache(maxsize=4096)
def _stack(trace: str) -> tuple[Source, ...]:
    """All frames of a stack trace, given as text, except those in generated code."""
    frames = (
        (file, int(line), function, code.strip())
        for file, line, function, code in _FRAME.findall(trace)
    )
    return tuple(
        Source(*frame) for frame in frames if not frame[0].startswith(_GENERATED)
    )


def _is_users(file: str) -> bool:
    """Whether a file belongs neither to torch nor to Python's library, and is no
    generated code.
    """
    # site-packages and dist-packages lie in the folder of Python's library: other
    # packages count as the user's
    if file.startswith(_STANDARD) and "-packages" not in file:
        return False
    return not _LIBRARY.search(file) and not file.startswith(_GENERATED)


def innermost(
    frames: Iterable[tuple[str, int, str, str]],
    accepts: Callable[[str], bool] = _is_users,
) -> Source | None:
    """The last of ``frames`` (file, line, function, code) for whose file ``accepts`` is
    true; None if there is none.

    ``frames`` are ordered from the outermost to the innermost. By default, files are
    accepted that belong neither to torch nor to Python's library.
    """
    accepted = [frame for frame in frames if accepts(frame[0])]
    return Source(*accepted[-1][:3], accepted[-1][3].strip()) if accepted else None
