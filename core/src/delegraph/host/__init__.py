"""A lowered program on this machine: calls, files, verification.

The names below are public, for code that looks at values (``LoweredProgram.observe``);
the modules are not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .compatibility import ProgramCompatibility
    from .executor import run_in_eager
    from .files import FileFormat, LoadedProgram
    from .graph_function import eager_target, is_observable
    from .statistics import TOLERANCES, OutputStatistics, compare, finite
    from .verify import Verification, call_of_model

__all__ = [
    "TOLERANCES",
    "FileFormat",
    "LoadedProgram",
    "OutputStatistics",
    "ProgramCompatibility",
    "Verification",
    "call_of_model",
    "compare",
    "eager_target",
    "finite",
    "is_observable",
    "run_in_eager",
]

_NAMES = {
    "compatibility": "ProgramCompatibility",
    "executor": "run_in_eager",
    "files": "FileFormat LoadedProgram",
    "graph_function": "eager_target is_observable",
    "statistics": "TOLERANCES OutputStatistics compare finite",
    "verify": "Verification call_of_model",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used. Raises AttributeError for any
        other name.
        """
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
