"""What every trace by torch needs here: one lock, and torch's log kept quiet about failures that are answers."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from weakref import WeakSet

from ..errors import DelegraphError


class Turn:
    """A re-entrant lock around work that a fork may cut in two.

    In a process that was forked while another thread had it, nobody will ever release it, and what it guards is left
    as it was in the middle of ``work``: whoever asks for it there gets a DelegraphError instead of waiting forever.
    Without ``work``, what it guards is whole at any moment, and a forked process finds it free.
    """

    def __init__(self, work: str | None = None) -> None:
        self._lock, self._work, self._torn = threading.RLock(), work, False
        _turns.add(self)

    def acquire(self, blocking: bool = True) -> bool:
        """As that of a lock. Raises DelegraphError in a process that was forked in the middle of the work."""
        if self._torn:
            text = f"this process was forked while another thread was {self._work}, whose work is left half done here"
            hint = "fork while no thread does so, or start processes by multiprocessing's 'spawn' or 'forkserver'"
            raise DelegraphError("forked-at-work", text, hint=hint)
        return self._lock.acquire(blocking)

    def release(self) -> None:
        """As that of a lock."""
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def is_mine(self) -> bool:
        """Whether this thread has it."""
        return self._lock._is_owned()  # type: ignore[attr-defined, no-any-return]

    def after_fork(self) -> None:
        """In the forked process, whose only thread is the one that forked."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._torn, self._lock = self._work is not None, threading.RLock()


_turns: WeakSet[Turn] = WeakSet()


def _after_fork() -> None:
    for turn in _turns:
        turn.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)

TRACING = Turn("lowering")
"""Held by the one thread that lowers, but for the compiling of thread-safe backends, and by others that trace.

torch's tracers keep state per process: a trace in one thread takes the modes of a torch.export in another away, and
puts them back for good after that has ended. Plugins trace as well, mostly without knowing it.
"""

_LOGGERS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")


@contextmanager
def unlogged(names: Sequence[str] = _LOGGERS) -> Iterator[None]:
    """Drop what torch warns of in its log, by default of calls that fail under fake tensors: the caller reports it."""
    loggers = [logging.getLogger(name) for name in names]
    quiet = partial(_is_no_warning)  # another one each time: a logger adds the same filter once only
    for logger in loggers:
        logger.addFilter(quiet)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(quiet)


def _is_no_warning(record: logging.LogRecord) -> bool:
    return record.levelno < logging.WARNING
