"""The border to the terminal: everything that the command line prints goes through here.

Much of it is other people's text: names in files, summaries and versions of plugins, exceptions, names of files. None
of it reaches the terminal with control characters, or with characters that change the direction of writing: they are
shown by their escapes, and so are characters that the terminal's encoding lacks. What models and plugins print
themselves passes as it is: their code could write to the terminal anyway, and progress bars need it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

from ..errors import WriteError
from ..io.escape import printable


def show(text: str, end: str = "\n") -> None:
    """Write a result to stdout. Raises WriteError; a reader that stops reading, such as head, is no error."""
    if sys.stdout is None or sys.stdout.closed:
        raise WriteError("write-failed", "cannot write to the standard output: it is closed")
    try:
        sys.stdout.write(_safe(text, sys.stdout) + end)
        sys.stdout.flush()
    except OSError as e:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python tries again when it exits
        if not isinstance(e, BrokenPipeError):
            raise WriteError("write-failed", f"cannot write to the standard output: {e.strerror or e}") from e


def tell(text: str, end: str = "\n") -> None:
    """Write something that is no result to stderr. If that is closed or full, there is nobody to tell."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(_safe(text, sys.stderr) + end)
        sys.stderr.flush()


def clear_line() -> None:
    """Remove what ``tell`` wrote on the last line."""
    tell("", end="\r\x1b[K")


def is_watched() -> bool:
    """Whether stderr is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def occupy_closed_descriptors() -> None:
    """Open /dev/null in place of standard streams that are closed; otherwise the next opened file would become one."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest free number


def _safe(text: str, stream: TextIO) -> str:
    """The text with escapes for characters that must not reach the terminal, or that its encoding lacks."""
    encoding = stream.encoding or "utf-8"
    shown = "\n".join(printable(line, kept="\t") for line in text.split("\n"))
    return shown.encode(encoding, "backslashreplace").decode(encoding)
