"""Functions for commands of ``delegraph``, in the core and in plugins.
``delegraph.plugin.CommandSpec`` declares a command.

This package is public. Import it in the module of the command's target, not in a light
module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..discovery.import_by_name import lazy_names

if TYPE_CHECKING:
    from ..discovery.first_party import provided
    from ..io.escape_for_terminal import table
    from .compiler_flags import add_compiler_flags, chosen_compiler
    from .inputs import read_array, read_arrays, read_inputs
    from .load_model import check_model, read_model, read_object
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
    from .protocol import Command, parse_options
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
    "read_arrays",
    "read_inputs",
    "read_model",
    "read_object",
    "show",
    "table",
    "tell",
]

if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name
    __getattr__ = lazy_names(
        __name__,
        {
            "..discovery.first_party": "provided",
            "..io.escape_for_terminal": "table",
            ".compiler_flags": "add_compiler_flags chosen_compiler",
            ".protocol": "Command parse_options",
            ".inputs": "read_array read_arrays read_inputs",
            ".load_model": "check_model read_model read_object",
            ".outcome": (
                "Outcome as_json expect_file expect_places natural_number output_path"
                " progress show"
            ),
            ".terminal": "tell",
        },
    )
