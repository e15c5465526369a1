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
            "what passed and failed, for CI",
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
            "compare every operator of a lowered model with eager and float64",
        ),
        CommandSpec(
            "compare",
            "delegraph_analysis.commands.compare:Compare",
            "lower a model for several backends, side by side",
        ),
        CommandSpec(
            "diff",
            "delegraph_analysis.commands.diff:Diff",
            "show what is other in one report than in another",
        ),
        CommandSpec(
            "inspect",
            "delegraph_analysis.commands.inspect:Inspect",
            "show what is in a file such as .tosa",
        ),
        CommandSpec(
            "matrix",
            "delegraph_analysis.commands.matrix:MatrixCommand",
            "do models for backends, a process for each cell; tables, and what became"
            " better or worse",
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
