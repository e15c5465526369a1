"""What every trace by torch needs here: one lock, and torch's log kept quiet about failures that are answers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

TRACING = threading.RLock()
"""Held while torch traces: its tracers keep state per process, and lowerings may run in several threads."""

_LOGGERS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")


@contextmanager
def unlogged() -> Iterator[None]:
    """Drop what torch logs about calls that fail under fake tensors: the caller catches the failure and reports it."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(_drop)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_drop)


def _drop(record: logging.LogRecord) -> bool:
    return False
