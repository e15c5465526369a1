"""The light module: report formats and commands of this distribution.

Imports neither torch nor numpy.
"""

from __future__ import annotations

from delegraph.plugin import CommandSpec, ReportSpec, hookimpl

_PAGE = "one page with pictures, which opens without network"


@hookimpl
def delegraph_reports() -> list[ReportSpec]:
    return [
        ReportSpec(".html", "delegraph_analysis.page.report_page:PageReport", _PAGE),
        ReportSpec(".htm", "delegraph_analysis.page.report_page:PageReport", _PAGE),
        ReportSpec(
            ".junit.xml",
            "delegraph_analysis.junit:JUnitReport",
            "passed and failed checks, for CI",
        ),
        ReportSpec(
            ".nodes.json",
            "delegraph_analysis.columns:NodeDataReport",
            "figures of nodes for Model Explorer",
        ),
    ]


@hookimpl
def delegraph_commands() -> list[CommandSpec]:
    return [
        CommandSpec(
            "accuracy",
            "delegraph_analysis.commands.accuracy:AccuracyOfOperators",
            "compare every operator of a lowered model with eager and float64, or its"
            " outputs over data",
        ),
        CommandSpec(
            "compare",
            "delegraph_analysis.commands.compare:Compare",
            "lower a model for several backends, side by side",
        ),
        CommandSpec(
            "diff",
            "delegraph_analysis.commands.diff:Diff",
            "show the differences between two reports",
        ),
        CommandSpec(
            "inspect",
            "delegraph_analysis.commands.inspect:Inspect",
            "show the contents of a file such as .tosa",
        ),
        CommandSpec(
            "matrix",
            "delegraph_analysis.commands.matrix:MatrixCommand",
            "lower and run models for backends, each in a process; tables and diffs",
        ),
        CommandSpec(
            "profile",
            "delegraph_analysis.commands.profile:Profile",
            "show where the time of a call goes, by line, module and delegate",
        ),
        CommandSpec(
            "run",
            "delegraph_analysis.commands.run:Run",
            "run a file such as .tosa on this host",
        ),
    ]
