"""Forwards names such as ``to_edge`` to ``delegraph_executorch.edge``, where they are now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise accept any name

    def __getattr__(name: str) -> Any:
        """The name in ``delegraph_executorch.edge``. Raises PluginUnavailable if that is not installed."""
        if name.startswith("__"):  # looked up by the import system and by pickle
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .discovery.own import provided

        return provided(f"delegraph_executorch.edge:{name}", f"{__name__}.{name}")
