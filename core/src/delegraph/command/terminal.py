"""Prints to the terminal. Everything that the command line itself prints goes through this module.

Much of that text comes from elsewhere: from files, plugins and exceptions. So control characters, characters that
change the direction of writing, and characters that the terminal's encoding lacks are replaced by escapes. What models
and plugins print themselves is not changed: their code could write to the terminal anyway, and progress bars need
control characters.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

from ..errors import WriteError
from ..io.escape import printable


def show(text: str, end: str = "\n") -> None:
    """Write a result to stdout. Raises WriteError if it cannot be written.

    A pipe whose reader has stopped, as ``head`` does, is no error: the rest of the result is dropped.
    """
    if sys.stdout is None or sys.stdout.closed:
        raise WriteError("write-failed", "cannot write to the standard output: it is closed")
    try:
        sys.stdout.write(_safe(text, sys.stdout) + end)
        sys.stdout.flush()
    except OSError as e:
        # stdout becomes /dev/null; otherwise Python would flush again at exit, and fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(e, BrokenPipeError):
            raise WriteError("write-failed", f"cannot write to the standard output: {e.strerror or e}") from e


def tell(text: str, end: str = "\n") -> None:
    """Write a message that is no result to stderr. Errors are ignored, because they could not be shown."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(_safe(text, sys.stderr) + end)
        sys.stderr.flush()


def clear_line() -> None:
    """Erase the terminal's current line."""
    tell("", end="\r\x1b[K")


def is_watched() -> bool:
    """Whether stderr is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def occupy_closed_descriptors() -> None:
    """Open /dev/null as each closed standard stream; otherwise the next opened file would get its descriptor."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is this one


def _safe(text: str, stream: TextIO) -> str:
    """``text`` with escapes for characters that do not print, and for those that the stream's encoding lacks.

    Line breaks and tabs stay.
    """
    encoding = stream.encoding or "utf-8"
    shown = "\n".join(printable(line, kept="\t") for line in text.split("\n"))
    return shown.encode(encoding, "backslashreplace").decode(encoding)
