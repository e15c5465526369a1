"""Compiles for delegraph elsewhere: in other processes, in executors of any kind, in other environments.

``delegraph.lower(..., isolation="process")`` and its neighbours find what they need here, and so does a cache: the
folder that a team shares, and answers of slow partitioners.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .answers import ask_once
    from .remote_cache import RemoteFolder
    from .workers import Workers

__all__ = ["RemoteFolder", "Workers", "ask_once"]


if not TYPE_CHECKING:
    _HOMES = {"RemoteFolder": "remote_cache", "Workers": "workers", "ask_once": "answers"}

    def __getattr__(name: str) -> Any:
        """The names above import torch, which the light module does without."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return found
