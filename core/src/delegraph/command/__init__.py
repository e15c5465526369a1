"""Functions for commands of ``delegraph``, in the core and in plugins.
``delegraph.plugin.CommandSpec`` declares a command.

This package is public. Import it in the module of the command's target, not in a light
module.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..discovery.first_party import provided
    from ..io.escape import table
    from .arrays import read_array
    from .compilers import add_compiler_flags, chosen_compiler
    from .contract import Command, parse_options
    from .inputs import read_inputs
    from .model import check_model, read_model
    from .outcome import (
        Outcome,
        as_json,
        expect_file,
        expect_places,
        natural_number,
        output_path,
        progress,
        show,
    )
    from .terminal import tell

__all__ = [
    "Command",
    "Outcome",
    "add_compiler_flags",
    "as_json",
    "check_model",
    "chosen_compiler",
    "expect_file",
    "expect_places",
    "natural_number",
    "output_path",
    "parse_options",
    "progress",
    "provided",
    "read_array",
    "read_inputs",
    "read_model",
    "show",
    "table",
    "tell",
]

_NAMES = {
    "..discovery.first_party": "provided",
    "..io.escape": "table",
    ".arrays": "read_array",
    ".compilers": "add_compiler_flags chosen_compiler",
    ".contract": "Command parse_options",
    ".inputs": "read_inputs",
    ".model": "check_model read_model",
    ".outcome": (
        "Outcome as_json expect_file expect_places natural_number output_path progress"
        " show"
    ),
    ".terminal": "tell",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import each name when it is first used: the CLI uses ``terminal`` to report
        that pluggy is missing.
        """
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOME[name], __name__), name)
