"""Prints to the terminal. Everything that the command line itself prints goes through
this module.

Much of that text comes from elsewhere: from files, plugins and exceptions. So control
characters, characters that change the direction of writing, and characters that the
terminal's encoding lacks are replaced by escapes. Prints of models and plugins are not
changed: their code could write to the terminal anyway, and progress bars need control
characters.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, NoReturn, TextIO

from ..errors import InputError, WriteError
from ..io.escape import printable


def show(text: str, end: str = "\n") -> None:
    """Write a result to stdout. Raises WriteError if it cannot be written.

    If the reader of a pipe has stopped, as ``head`` does, that is no error: the rest of
    the result is dropped.
    """
    if sys.stdout is None or sys.stdout.closed:
        raise WriteError(
            "write-failed", "cannot write to the standard output: it is closed"
        )
    try:
        sys.stdout.write(_safe(text, sys.stdout) + end)
        sys.stdout.flush()
    except OSError as e:
        # stdout becomes /dev/null; otherwise Python would flush again at exit, and fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(e, BrokenPipeError):
            raise WriteError(
                "write-failed",
                f"cannot write to the standard output: {e.strerror or e}",
            ) from e


class GuardedStream:
    """A standard stream that code of models and plugins cannot close; everything else
    goes to ``stream``.

    Without it, a model that closes ``sys.stdout`` would take the errors of the command
    with it.
    """

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream = stream
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._stream, attribute)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)

    def __enter__(self) -> GuardedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> NoReturn:
        """Raise InputError: the command needs the stream."""
        hint = "remove that call; print(..., file=FILE) writes elsewhere"
        raise InputError(
            "input-invalid",
            f"the model closes {self._name}, to which the command writes",
            hint=hint,
        )

    def detach(self) -> NoReturn:
        """Raise InputError: without its buffer the stream is of no use."""
        self.close()


@contextlib.contextmanager
def streams_guarded() -> Iterator[None]:
    """A block in which ``sys.stdout`` and ``sys.stderr`` write to stderr, and cannot be
    closed.
    """
    before = sys.stdout, sys.stderr
    if sys.stderr is not None:
        guarded: Any = [
            GuardedStream(sys.stderr, name) for name in ("sys.stdout", "sys.stderr")
        ]
        sys.stdout, sys.stderr = guarded
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


@contextlib.contextmanager
def messages_kept() -> Iterator[None]:
    """A block with messages that reach stderr even if code in it replaces
    ``sys.stderr``, or closes its descriptor.
    """
    global _messages, _descriptor
    before = _messages, _descriptor
    _messages = sys.stderr
    _descriptor = None
    # stderr is closed, or no file, as in tests
    with contextlib.suppress(OSError, ValueError, AttributeError):
        _descriptor = os.dup(sys.stderr.fileno())
    try:
        yield
    finally:
        if _descriptor is not None:
            os.close(_descriptor)
        _messages, _descriptor = before


_messages: TextIO | None = None
"""Where messages go inside of ``messages_kept``; None outside of it, where they go to
``sys.stderr``.
"""
_descriptor: int | None = None
"""A copy of stderr's descriptor, for messages if the stream was closed."""


def tell(text: str, end: str = "\n") -> None:
    """Write a message that is no result to stderr. Errors are ignored, because they
    could not be shown.
    """
    stream = _messages or sys.stderr
    try:
        stream.write(_safe(text, stream) + end)
        stream.flush()
    except (OSError, ValueError, AttributeError):
        if _descriptor is not None:
            with contextlib.suppress(OSError):
                os.write(_descriptor, (text + end).encode("utf-8", "backslashreplace"))


def clear_line() -> None:
    """Erase the terminal's current line."""
    tell("", end="\r\x1b[K")


def is_watched() -> bool:
    """Return whether stderr is a terminal."""
    stream = _messages or sys.stderr
    return stream is not None and not stream.closed and stream.isatty()


def occupy_closed_descriptors() -> None:
    """Open /dev/null as each closed standard stream; otherwise the next opened file
    would get its descriptor.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # gets the lowest free descriptor, which is this one
            os.open(os.devnull, os.O_RDWR)


def _safe(text: str, stream: TextIO) -> str:
    """Return ``text`` with escapes for characters that do not print, and for those that
    the stream's encoding lacks.

    Line breaks and tabs stay.
    """
    encoding = stream.encoding or "utf-8"
    shown = "\n".join(printable(line, kept="\t") for line in text.split("\n"))
    return shown.encode(encoding, "backslashreplace").decode(encoding)
