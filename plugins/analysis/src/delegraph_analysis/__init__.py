"""Report on lowerings: pages with pictures, accuracy by operator, comparisons.

from delegraph_analysis import compare, verify_operators

lowered.report.save("report.html", {"forward": verify_operators(lowered, image)})
print(compare(model, (image,), backends=["tosa", "xnnpack"]))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .accuracy.operators import (
        OperatorStatistics,
        OperatorVerification,
        VerificationByOperator,
    )
    from .accuracy.reference import verify_operators
    from .accuracy.reruns import verify_ties
    from .columns import NodeData, node_data
    from .comparison import Candidate, Comparison, compare
    from .over_data.scores import ColumnScores, SampleScores, VerificationOverData
    from .over_data.verifying import verify_over
    from .page.report_page import render_page
    from .profiling import ProgramProfile, profile_file, profile_program
    from .summaries import summary_text
    from .trace import perfetto_trace

__all__ = [
    "Candidate",
    "ColumnScores",
    "Comparison",
    "NodeData",
    "OperatorStatistics",
    "OperatorVerification",
    "ProgramProfile",
    "SampleScores",
    "VerificationByOperator",
    "VerificationOverData",
    "compare",
    "node_data",
    "perfetto_trace",
    "profile_file",
    "profile_program",
    "render_page",
    "summary_text",
    "verify_operators",
    "verify_over",
    "verify_ties",
]

_NAMES = {
    "accuracy.operators": (
        "OperatorStatistics OperatorVerification VerificationByOperator"
    ),
    "accuracy.reference": "verify_operators",
    "accuracy.reruns": "verify_ties",
    "comparison": "Candidate Comparison compare",
    # no module has one of these names: importing it would replace the function
    "columns": "NodeData node_data",
    "over_data.scores": "ColumnScores SampleScores VerificationOverData",
    "over_data.verifying": "verify_over",
    "page.report_page": "render_page",
    "profiling": "ProgramProfile profile_file profile_program",
    "summaries": "summary_text",
    "trace": "perfetto_trace",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a name at its first use: the light module does without torch."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value
        return value
