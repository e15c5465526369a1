"""Compiles for delegraph in other processes, in executors of any kind, in other
environments, and keeps results.

``delegraph.lower(..., compiler=delegraph_workers.Compiler(...))``; the flags of
``delegraph lower`` make one, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cache import Cache, CacheEntry, Store
    from .compiler import Compiler
    from .remote_cache import RemoteFolder

__all__ = ["Cache", "CacheEntry", "Compiler", "RemoteFolder", "Store"]


if not TYPE_CHECKING:
    _HOMES = {
        "Cache": "cache",
        "CacheEntry": "cache",
        "Compiler": "compiler",
        "RemoteFolder": "remote_cache",
        "Store": "cache",
    }

    def __getattr__(name: str) -> Any:
        """The names above import torch, which the light module does without."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(
            import_module(f"{__name__}.{_HOMES[name]}"), name
        )
        return found
