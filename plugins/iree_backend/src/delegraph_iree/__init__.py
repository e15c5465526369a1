"""IREE backend of delegraph: partitions become IREE modules, by way of TOSA. Names in ``__all__`` are public."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .mlir import write_mlir

__all__ = ["write_mlir"]


if not TYPE_CHECKING:  # a type checker that saw it would take any name, misspelt or not

    def __getattr__(name: str) -> Any:
        if name != "write_mlir":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .mlir import write_mlir

        return write_mlir
