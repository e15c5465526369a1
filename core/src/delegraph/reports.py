"""For code that reads the report of a lowering row by row, or writes reports in a
format of its own.

A distribution declares a format by ``delegraph.plugin.ReportSpec``, whose target is a
``ReportFormat``.
"""

from __future__ import annotations

from .host.statistics import TOLERANCES, OutputStatistics
from .host.verify import Verification
from .report.collect import NOT_TAGGED, host_calls, left_operators, refused_by
from .report.facts import (
    Fact,
    format_seconds,
    format_size,
    list_counts,
    most_frequent,
    pluralize,
)
from .report.formats import LoweringResult, ReportFormat, verification_content
from .report.model import SCHEMA, Report
from .report.notation import Notation
from .report.rows import (
    Cause,
    DelegateRow,
    MethodRow,
)
from .report.saving import expect_report_formats, write_report

__all__ = [
    "NOT_TAGGED",
    "SCHEMA",
    "TOLERANCES",
    "Cause",
    "DelegateRow",
    "Fact",
    "LoweringResult",
    "MethodRow",
    "Notation",
    "OutputStatistics",
    "Report",
    "ReportFormat",
    "Verification",
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
