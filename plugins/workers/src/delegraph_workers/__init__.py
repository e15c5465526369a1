"""Compile partitions in other processes, executors and environments, and cache results.

Use it as ``delegraph.lower(..., compiler=delegraph_workers.Compiler(...))``, or by the
flags of ``delegraph lower``.
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
        """Import a name at its first use: the light module does without torch."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(f"{__name__}.{_HOMES[name]}")
        found = getattr(module, name)
        globals()[name] = found
        return found
