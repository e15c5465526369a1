"""What every trace by torch needs here: one lock, and torch's log kept quiet about failures that are answers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

TRACING = threading.RLock()
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
