"""Write, read, inspect and run ExecuTorch's ``.pte`` files, without ExecuTorch.

``bridge`` makes a delegraph backend of a backend of ExecuTorch. It needs the wheel
``executorch``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bridging import bridge

__all__ = ["bridge"]


def __getattr__(name: str) -> Any:
    if name != "bridge":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .bridging import bridge

    return bridge
