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
from ..io.escape_for_terminal import printable


def show(text: str, end: str = "\n") -> None:
    """Write a result to stdout. Raises WriteError if it cannot be written.

    If stdout is a pipe and its reader, such as ``head``, has ended, the rest of the
    result is dropped without an error.
    """
    if sys.stdout is None or sys.stdout.closed:
        raise WriteError(
            "write-failed", "cannot write to the standard output: it is closed"
        )
    try:
        sys.stdout.write(_safe(text, sys.stdout) + end)
        sys.stdout.flush()
    except OSError as e:
        # stdout becomes /dev/null: otherwise Python would write the rest at exit, which
        # would fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(e, BrokenPipeError):
            raise WriteError(
                "write-failed",
                f"cannot write to the standard output: {e.strerror or e}",
            ) from e


class GuardedStream:
    """A standard stream that code of models and plugins cannot close. All other methods
    are those of ``stream``. ``name``: for the error, such as ``sys.stdout``.

    Without this class, a model that closes ``sys.stdout`` would also suppress the errors
    of the command.
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
        """Raise InputError: the command cannot use a stream without its buffer."""
        self.close()


@contextlib.contextmanager
def streams_guarded() -> Iterator[None]:
    """A block in which ``sys.stdout`` and ``sys.stderr`` both write to stderr, and code
    cannot close them. If there is no stderr, the block changes nothing.
    """
    before = sys.stdout, sys.stderr
    stderr: Any = sys.stderr
    if stderr is not None:
        sys.stdout = GuardedStream(stderr, "sys.stdout")
        sys.stderr = GuardedStream(stderr, "sys.stderr")
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


_messages: TextIO | None = None
"""The stream for messages inside of ``messages_kept``. None outside of it: messages then
go to ``sys.stderr``.
"""
_descriptor: int | None = None
"""A copy of stderr's descriptor, for messages if the stream was closed."""


@contextlib.contextmanager
def messages_kept() -> Iterator[None]:
    """A block in which ``tell`` writes to the present stderr, even if code in the block
    replaces ``sys.stderr`` or closes its descriptor.

    ``tell`` uses ``_messages``, the stream, and then ``_descriptor``, a copy of the
    stream's descriptor.
    """
    global _messages, _descriptor
    before = _messages, _descriptor
    _messages = sys.stderr
    _descriptor = None
    # suppressed: stderr is closed, or is no file, as in tests
    with contextlib.suppress(OSError, ValueError, AttributeError):
        _descriptor = os.dup(sys.stderr.fileno())
    try:
        yield
    finally:
        if _descriptor is not None:
            os.close(_descriptor)
        _messages, _descriptor = before


def tell(text: str, end: str = "\n") -> None:
    """Write a message, which is not part of a result, to stderr.

    If the stream is closed, the message goes to the copy of its descriptor that
    ``messages_kept`` made. Other errors are ignored, because nothing could show them.
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
    """Open /dev/null in place of each standard stream that is closed. Otherwise the next
    opened file would get the descriptor of that stream, and prints would go into the
    file.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # the system assigns the lowest free descriptor, which is ``descriptor``
            os.open(os.devnull, os.O_RDWR)


def _safe(text: str, stream: TextIO) -> str:
    """Return ``text`` with escapes for characters that do not print, and for those that
    the stream's encoding lacks.

    Line breaks and tabs stay.
    """
    encoding = stream.encoding or "utf-8"
    shown = "\n".join(printable(line, kept="\t") for line in text.split("\n"))
    return shown.encode(encoding, "backslashreplace").decode(encoding)
