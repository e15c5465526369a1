"""Language models of transformers for delegraph.

``generation_steps`` makes the arguments of ``delegraph.lower``. ``generate`` generates
tokens with the lowered program, or with a saved one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .generation import Generation, generate
    from .models import generation_steps
    from .steps import Step

__all__ = ["Generation", "Step", "generate", "generation_steps"]
_HOME = {
    "Generation": "generation",
    "Step": "steps",
    "generate": "generation",
    "generation_steps": "models",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import each name when it is first used: the light module is in this package."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
