"""Silences packages that log, warn or configure logging."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["quietly"]

_LOCK = threading.Lock()
_inside: list[int] = []
"""Identifiers of the threads in ``quietly``, one for each block that they are in."""
_restores: list[Callable[[], None]] = []
"""The function that restores logging.

The first thread to enter ``quietly`` adds it, and the last one to leave calls it.
"""


class _QuietThreads:
    """Replaces the compiled pattern of a warning filter.

    It matches all warnings of threads that are in ``quietly``.
    """

    def match(self, text: str) -> bool:
        """Return whether the current thread is in ``quietly``; ignore ``text``."""
        return threading.get_ident() in _inside


_FILTER = ("ignore", _QuietThreads(), Warning, None, 0)
"""An entry of ``warnings.filters``.

Its fields are action, pattern of the text, category, pattern of the module, line.
"""


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress warnings and some log messages in a block.

    This thread's warnings are ignored. The loggers of torchao and of torch's pytree
    write only errors, in all threads. When the last thread has left such a block, the
    levels of these loggers are restored. So are level and handlers of the root logger,
    which imported packages may have set.

    torchao, which quantizing and ExecuTorch import, logs which of its GPU kernels do
    not load, and warns about its own calls. ``warnings.catch_warnings`` cannot be used:
    filters belong to the process, so two threads that use it at once could restore each
    other's filters and silence all warnings for good.
    """
    thread = threading.get_ident()
    with _LOCK:
        if not _inside:  # the first thread to enter
            _restores.append(_quiet_log())
        _inside.append(thread)
        # also in nested blocks, since another block may have replaced the list
        _filters().insert(0, _FILTER)
    try:
        yield
    finally:
        with _LOCK:
            _inside.remove(thread)
            if not _inside:  # the last thread to leave
                _filters()[:] = [f for f in _filters() if f is not _FILTER]
                _restores.pop()()


def _filters() -> Any:
    """Return the list of warning filters in force.

    It is read again each time, since ``catch_warnings`` replaces the list.
    """
    return warnings.filters


def _quiet_log() -> Callable[[], None]:
    """Let torchao and torch's pytree log errors only; return a function to undo that.

    It also gives the root logger the level and handlers that it has now.
    """
    root = logging.getLogger()
    level = root.level
    handlers = list(root.handlers)
    noisy = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    noisy_levels = [logger.level for logger in noisy]
    for logger in noisy:
        logger.setLevel(logging.ERROR)

    def restore() -> None:
        """Restore the levels of the loggers, and level and handlers of the root logger."""
        for logger, old_level in zip(noisy, noisy_levels, strict=True):
            logger.setLevel(old_level)
        root.setLevel(level)
        root.handlers[:] = handlers

    return restore
