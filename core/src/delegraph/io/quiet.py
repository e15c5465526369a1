"""Packages of others that set up logging, log and warn while they are imported and while they work."""

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
"""The threads that are in ``quietly``, each as often as it has entered."""
_restores: list[Callable[[], None]] = []
"""What the last of them that leaves does; the first that enters adds it."""


class _Inside:
    """Stands in a filter of warnings where a pattern stands: matches what a thread that is in ``quietly`` warns of."""

    def match(self, text: str) -> bool:
        return threading.get_ident() in _inside


_FILTER = ("ignore", _Inside(), Warning, None, 0)


@contextmanager
def quietly() -> Iterator[None]:
    """Without this thread's warnings, and with the root logger as it was: how it logs is the program's choice.

    torchao, which quantizing and ExecuTorch import, logs which of its kernels for GPUs do not load, and warns of calls
    that are its own. Filters and levels belong to the process: ``warnings.catch_warnings`` in two threads at once may
    put back those of the other, and so silence all warnings for good.
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
    """The filters of warnings that hold now; ``catch_warnings`` puts another list in their place."""
    return warnings.filters


def _quiet_log() -> Callable[[], None]:
    """Log errors only where packages are known to log more; the result puts all of it back."""
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
