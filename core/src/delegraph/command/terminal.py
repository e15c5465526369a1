"""The border to the terminal. Everything that the command line prints goes through here.

Much of it is text of others: names in files, summaries and versions of plugins, exceptions, names of files. None of it
reaches the terminal with control characters or with characters that change the direction of writing; they are shown by
their escapes, as is what the terminal's encoding lacks. What models and plugins print while they run passes as it is:
such code could write to the terminal anyway, and progress bars need it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

from ..errors import WriteError
from ..io.escape import printable


def show(text: str, end: str = "\n") -> None:
    """Write a result to stdout. Raises WriteError; a reader that has seen enough, such as head, is no error."""
    if sys.stdout is None or sys.stdout.closed:
        raise WriteError("write-failed", "cannot write to the standard output: it is closed")
    try:
        sys.stdout.write(_safe(text, sys.stdout) + end)
        sys.stdout.flush()
    except OSError as e:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python tries again at its end
        if not isinstance(e, BrokenPipeError):
            raise WriteError("write-failed", f"cannot write to the standard output: {e.strerror or e}") from e


def tell(text: str, end: str = "\n") -> None:
    """Write what is no result to stderr. Where that is closed or full, there is nobody left who could be told."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(_safe(text, sys.stderr) + end)
        sys.stderr.flush()


def clear_line() -> None:
    """Take away what ``tell`` wrote on the last line."""
    tell("", end="\r\x1b[K")


def is_watched() -> bool:
    """Whether stderr is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def occupy_closed_descriptors() -> None:
    """Put /dev/null where standard streams are closed, or the next file that is opened becomes one of them."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free


def _safe(text: str, stream: TextIO) -> str:
    encoding = stream.encoding or "utf-8"
    shown = "\n".join(printable(line, kept="\t") for line in text.split("\n"))
    return shown.encode(encoding, "backslashreplace").decode(encoding)
