"""Write, read, inspect and run ExecuTorch's ``.pte`` files, without ExecuTorch.

``bridge`` makes a delegraph backend from an ExecuTorch backend. Only ``bridge`` needs
the wheel ``executorch``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bridging import bridge

__all__ = ["bridge"]


def __getattr__(name: str) -> Any:
    """Import ``bridge`` on first use, since it needs the wheel ``executorch``."""
    if name != "bridge":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .bridging import bridge

    return bridge
