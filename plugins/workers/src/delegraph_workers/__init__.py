"""Compiles for delegraph elsewhere: in other processes, in executors of any kind, in other environments.

``delegraph.lower(..., isolation="process")`` and its neighbours find what they need here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .workers import Workers

__all__ = ["Workers"]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """The name above imports torch, which the light module does without."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .workers import Workers

        globals()[name] = Workers
        return Workers
