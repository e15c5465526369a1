"""The lock that every trace by torch needs, and a filter for torch's log messages."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from weakref import WeakSet

from .errors import DelegraphError


class ForkSafeLock:
    """A re-entrant lock around work that a fork may interrupt.

    If a process forks while another thread holds the lock, no thread of the new process
    will ever release it. ``work`` describes what the thread does with the lock, such as
    "lowering". The fork leaves that work half done, so acquiring the lock in the new
    process raises a DelegraphError instead of waiting forever. If ``work`` is None, the
    guarded data is consistent at any moment, and the new process gets a free lock.
    """

    def __init__(self, work: str | None = None) -> None:
        """Create a free lock; the class describes ``work``."""
        self._lock = threading.RLock()
        self._work = work
        self._torn = False  # a fork interrupted the work
        _locks.add(self)

    def acquire(self, blocking: bool = True) -> bool:
        """Acquire the lock; return whether this thread has it.

        If another thread has it and ``blocking`` is false, the result is False. Raises
        DelegraphError in a process that was forked in the middle of the work.
        """
        if self._torn:
            text = (
                f"this process was forked while another thread was {self._work}; that"
                " work cannot be finished in this process"
            )
            hint = (
                "fork when no thread does so, or start processes by multiprocessing's"
                " 'spawn' or 'forkserver'"
            )
            raise DelegraphError("forked-at-work", text, hint=hint)
        return self._lock.acquire(blocking)

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def is_mine(self) -> bool:
        """Return whether this thread holds the lock."""
        return self._lock._is_owned()  # type: ignore[attr-defined, no-any-return]

    def after_fork(self) -> None:
        """Make the lock usable in the forked process, where only one thread is left."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            # another thread held it, which does not exist in this process
            self._torn = self._work is not None
            self._lock = threading.RLock()


_locks: WeakSet[ForkSafeLock] = WeakSet()


def _after_fork() -> None:
    """Make the locks usable in the forked process."""
    for lock in _locks:
        lock.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)

TRACING = ForkSafeLock("lowering")
"""The lock of the one thread that lowers or traces.

torch's tracers keep their state in the process. A trace in one thread removes the modes
of a torch.export in another thread, and restores them for good after that export has
ended. Plugins trace as well: many functions of torch do. The lock is released while
thread-safe backends compile.
"""

_LOGGERS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")


@contextmanager
def unlogged(names: Sequence[str] = _LOGGERS) -> Iterator[None]:
    """Drop warnings and errors of the loggers ``names`` inside a ``with`` block.

    The default loggers report calls that fail under fake tensors. Callers of this
    function report such failures themselves.
    """
    loggers = [logging.getLogger(name) for name in names]
    # a new object for each block: a logger adds the same filter only once
    no_warnings = partial(_is_no_warning)
    for logger in loggers:
        logger.addFilter(no_warnings)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(no_warnings)


def _is_no_warning(record: logging.LogRecord) -> bool:
    """Return whether a record is below the level WARNING."""
    return record.levelno < logging.WARNING
