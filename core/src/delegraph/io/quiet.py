"""Silences packages that set up logging, log and warn while they are imported and while they work."""

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
"""The threads in ``quietly``, each as often as it has entered."""
_restores: list[Callable[[], None]] = []
"""The function that the last thread to leave has to call; the first one to enter adds it."""


class _Inside:
    """Stands for a pattern in a filter of warnings, and matches every warning of threads that are in ``quietly``."""

    def match(self, text: str) -> bool:
        """Whether this thread is in ``quietly``; the text does not matter."""
        return threading.get_ident() in _inside


_FILTER = ("ignore", _Inside(), Warning, None, 0)


@contextmanager
def quietly() -> Iterator[None]:
    """A block without this thread's warnings.

    Afterwards the root logger is as before, since logging is the program's choice. torchao, which quantizing and
    ExecuTorch import, logs which of its kernels for GPUs do not load, and warns about calls that it makes itself.
    Filters and levels belong to the process: ``warnings.catch_warnings`` in two threads at once could restore those of
    the other thread, and so silence all warnings for good.
    """
    thread = threading.get_ident()
    with _LOCK:
        if not _inside:
            _restores.append(_quiet_log())
        _inside.append(thread)
        _filters().insert(0, _FILTER)
    try:
        yield
    finally:
        with _LOCK:
            _inside.remove(thread)
            if not _inside:
                _filters()[:] = [f for f in _filters() if f is not _FILTER]
                _restores.pop()()


def _filters() -> Any:
    """The filters of warnings that are in force; ``catch_warnings`` replaces the list."""
    return warnings.filters


def _quiet_log() -> Callable[[], None]:
    """Let packages that log too much log only errors; returns a function that restores all of it."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    others = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    levels = [logger.level for logger in others]
    for logger in others:
        logger.setLevel(logging.ERROR)

    def restore() -> None:
        for logger, before in zip(others, levels, strict=True):
            logger.setLevel(before)
        root.setLevel(level)
        root.handlers[:] = handlers

    return restore
