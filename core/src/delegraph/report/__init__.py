"""The report of a lowering: its rows and facts, written as text and JSON.

The names below are public, for code that reads a report row by row, or writes reports
in a format of its own. A distribution declares such a format by
``delegraph.plugin.ReportSpec``. The modules are not public.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .collect import NOT_TAGGED, host_calls, left_operators, refused_by
    from .facts import (
        Fact,
        format_seconds,
        format_size,
        list_counts,
        most_frequent,
        pluralize,
    )
    from .formats import LoweringResult, ReportFormat, verification_content
    from .model import SCHEMA, Report
    from .notation import Notation
    from .rows import Cause, DelegateRow, MethodRow
    from .saving import expect_report_formats, write_report

__all__ = [
    "NOT_TAGGED",
    "SCHEMA",
    "Cause",
    "DelegateRow",
    "Fact",
    "LoweringResult",
    "MethodRow",
    "Notation",
    "Report",
    "ReportFormat",
    "expect_report_formats",
    "format_seconds",
    "format_size",
    "host_calls",
    "left_operators",
    "list_counts",
    "most_frequent",
    "pluralize",
    "refused_by",
    "verification_content",
    "write_report",
]

_NAMES = {
    "collect": "NOT_TAGGED host_calls left_operators refused_by",
    "facts": ("Fact format_seconds format_size list_counts most_frequent pluralize"),
    "formats": "LoweringResult ReportFormat verification_content",
    "model": "SCHEMA Report",
    "notation": "Notation",
    "rows": "Cause DelegateRow MethodRow",
    "saving": "expect_report_formats write_report",
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
