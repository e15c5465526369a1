"""Silences packages that log, warn or configure logging when they are imported or
called.
"""

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
"""Identifiers of the threads in ``quietly``; a thread in nested blocks has several
entries.
"""
_restores: list[Callable[[], None]] = []
"""The function that restores logging. The first thread to enter ``quietly`` adds it,
the last one to leave calls it.
"""


class _Inside:
    """Replaces the compiled pattern of a warning filter; matches all warnings of
    threads that are in ``quietly``.
    """

    def match(self, text: str) -> bool:
        """Whether the current thread is in ``quietly``, whatever the warning's
        ``text``.
        """
        return threading.get_ident() in _inside


_FILTER = ("ignore", _Inside(), Warning, None, 0)


@contextmanager
def quietly() -> Iterator[None]:
    """A block without this thread's warnings, and without log messages below ERROR from
    torchao and torch's pytree.

    When the last thread has left such a block, the levels of these loggers are
    restored, and so are level and handlers of the root logger, which imported packages
    may have set.

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
        # each time, since another block may have replaced the list meanwhile
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
    """The list of warning filters in force. Must be read anew each time, since
    ``catch_warnings`` replaces the list.
    """
    return warnings.filters


def _quiet_log() -> Callable[[], None]:
    """Let torchao and torch's pytree log errors only.

    Returns a function that gives these loggers their levels back, and the root logger
    its level and handlers of now.
    """
    root = logging.getLogger()
    level = root.level
    handlers = list(root.handlers)
    noisy = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    noisy_levels = [logger.level for logger in noisy]
    for logger in noisy:
        logger.setLevel(logging.ERROR)

    def restore() -> None:
        """Undo what ``_quiet_log`` did, and what was done to the root logger since."""
        for logger, old_level in zip(noisy, noisy_levels, strict=True):
            logger.setLevel(old_level)
        root.setLevel(level)
        root.handlers[:] = handlers

    return restore
