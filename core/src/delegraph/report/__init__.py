"""The report of a lowering: its rows and facts, written as text and JSON.

The names below are public, for code that reads a report row by row, or writes reports
in a format of its own. A distribution declares such a format by
``delegraph.plugin.ReportSpec``. The modules are not public.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..discovery.import_by_name import lazy_names

if TYPE_CHECKING:
    from .formats import (
        LoweringResult,
        ReportFormat,
        expect_report_formats,
        verification_content,
        write_report,
    )
    from .left_on_host import NOT_TAGGED, host_calls, left_operators, refused_by
    from .model import SCHEMA, Report
    from .rows import Cause, DelegateRow, MethodRow
    from .user_names import Notation
    from .values_as_text import (
        Fact,
        format_seconds,
        format_size,
        list_counts,
        most_frequent,
        pluralize,
    )

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

if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name
    __getattr__ = lazy_names(
        __name__,
        {
            ".left_on_host": "NOT_TAGGED host_calls left_operators refused_by",
            ".values_as_text": (
                "Fact format_seconds format_size list_counts most_frequent pluralize"
            ),
            ".formats": (
                "LoweringResult ReportFormat expect_report_formats"
                " verification_content write_report"
            ),
            ".model": "SCHEMA Report",
            ".user_names": "Notation",
            ".rows": "Cause DelegateRow MethodRow",
        },
    )
