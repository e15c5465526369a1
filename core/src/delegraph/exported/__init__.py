"""Programs of ``torch.export``: what they are made of and how they are rewritten. Nothing here knows a backend.

The names below are public; the modules are not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .call_names import EXPORTED, LEFT, count_operators, is_operator, operator_name, unpacked
    from .decompose.tables import RECURRENT, to_core
    from .gc_pause import pause_collection
    from .opaque import Opaque
    from .randomness import is_random
    from .subgraphs import all_nodes
    from .tracing import TRACING
    from .types import ExampleInputs, Program, Transform

__all__ = [
    "EXPORTED",
    "LEFT",
    "RECURRENT",
    "TRACING",
    "ExampleInputs",
    "Opaque",
    "Program",
    "Transform",
    "all_nodes",
    "count_operators",
    "is_operator",
    "is_random",
    "operator_name",
    "pause_collection",
    "to_core",
    "unpacked",
]

_NAMES = {
    "call_names": "EXPORTED LEFT count_operators is_operator operator_name unpacked",
    "gc_pause": "pause_collection",
    "opaque": "Opaque",
    "randomness": "is_random",
    "subgraphs": "all_nodes",
    "decompose.tables": "RECURRENT to_core",
    "tracing": "TRACING",
    "types": "ExampleInputs Program Transform",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import what is asked for when it is used."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
