"""Packages of others that set up logging, log and warn while they are imported and while they work."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quietly"]


@contextmanager
def quietly() -> Iterator[None]:
    """Without warnings, and with the root logger as it was: how it logs is the program's choice, not ours.

    torchao, which quantizing and ExecuTorch import, logs which of its kernels for GPUs do not load, and warns of calls
    that are its own.
    """
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    others = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    levels = [logger.level for logger in others]
    try:
        for logger in others:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, before in zip(others, levels, strict=True):
            logger.setLevel(before)
        root.setLevel(level)
        root.handlers[:] = handlers
