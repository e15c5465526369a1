"""What a command of ``delegraph`` is made of, a plugin's as well; ``delegraph.plugin.CommandSpec`` declares one.

This package is public. It is imported with the command's target, so light modules do not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .contract import Command, Outcome, check_model, load_model, parse_options, progress, table

__all__ = ["Command", "Outcome", "check_model", "load_model", "parse_options", "progress", "table"]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import what is asked for when it is used: the terminal is spoken to before pluggy is known to be there."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import contract

        return getattr(contract, name)
