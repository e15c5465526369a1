"""Lower one model for several fixed sizes, and choose a method by the sizes of a call.

Each size is a bucket. It becomes a method of one program file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .program import BucketedProgram, LoadedBuckets, load, lower_buckets

__all__ = ["BucketedProgram", "LoadedBuckets", "load", "lower_buckets"]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import the names late: they need torch, which reading ``table`` does not."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import program

        return getattr(program, name)
