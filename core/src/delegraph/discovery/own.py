"""Delegraph's own declarations, made like those of plugins; and which distribution has what delegraph lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import PluginUnavailable
from ..plugin import CommandSpec, Declaration, FormatSpec, ReportSpec
from .loading import load, missing

COMMANDS = (
    CommandSpec("backends", "delegraph.cli.listing:Backends", "list the backends that are installed"),
    CommandSpec("doctor", "delegraph.cli.listing:Doctor", "examine every plugin; exit code 1 if one is broken"),
    CommandSpec("lower", "delegraph.cli.lowering:Lower", "lower a model and write what a backend makes of it"),
    CommandSpec("completion", "delegraph.cli.completion:Completion", "print a script that completes in a shell"),
)
"""Commands are found here before any plugin is read."""

REPORTS = (
    ReportSpec(".txt", "delegraph.report.formats:TextReport", "as it is printed"),
    ReportSpec(".json", "delegraph.report.formats:JsonReport", "for programs"),
)
OWN: tuple[Declaration, ...] = (*COMMANDS, *REPORTS)
"""All of them. A plugin's declaration of the same name is found only as ``distribution/name``."""


PROVIDERS: Mapping[tuple[type[Declaration], str], str] = {
    (FormatSpec, ".pte"): "delegraph-executorch",
    (FormatSpec, ".tosa"): "delegraph-tosa",
    (CommandSpec, "check"): "delegraph-devkit",
    (CommandSpec, "coverage"): "delegraph-devkit",
    (CommandSpec, "new-backend"): "delegraph-devkit",
    **{(CommandSpec, name): "delegraph-analysis" for name in ("accuracy", "compare", "diff", "inspect", "run")},
    (CommandSpec, "quantize"): "delegraph-quantize",
    **{(ReportSpec, suffix): "delegraph-analysis" for suffix in (".html", ".htm", ".junit.xml", ".nodes.json")},
}
"""Something that may be asked for -> the distribution that has it, for the error if that is not installed."""


def provided(target: str, what: str) -> Any:
    """The object of another distribution that a name of delegraph's stands for; ``what`` calls it in the error.

    Raises PluginUnavailable, with the pip command, if that distribution is not installed.
    """
    package = target.partition(":")[0].partition(".")[0]
    if missing([package]):
        distribution = package.replace("_", "-")
        text = f"{what} comes with {distribution}, which is not installed"
        raise PluginUnavailable("plugin-unavailable", text, hint=f"pip install {distribution}")
    return load(target)
