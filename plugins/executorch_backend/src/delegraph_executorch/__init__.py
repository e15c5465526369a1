"""ExecuTorch's program format for delegraph: ``.pte`` files written, read, inspected
and run, without ExecuTorch.

``bridge`` makes delegraph backends of ExecuTorch's; that needs the wheel
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
