"""A lowered program on this machine: calls, files, verification.

The names below are public, for code that looks at values (``LoweredProgram.observe``);
the modules are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..discovery.import_by_name import lazy_names

if TYPE_CHECKING:
    from delegraph_programs.compare_with_eager import (
        TOLERANCES,
        OutputStatistics,
        compare,
        finite,
    )

    from .blob_compatibility import ProgramCompatibility
    from .executor import run_in_eager
    from .files import FileFormat, LoadedProgram
    from .graph_function import eager_target, is_observable
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

if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name
    __getattr__ = lazy_names(
        __name__,
        {
            "delegraph_programs.compare_with_eager": (
                "TOLERANCES OutputStatistics compare finite"
            ),
            ".blob_compatibility": "ProgramCompatibility",
            ".executor": "run_in_eager",
            ".files": "FileFormat LoadedProgram",
            ".graph_function": "eager_target is_observable",
            ".verify": "Verification call_of_model",
        },
    )
