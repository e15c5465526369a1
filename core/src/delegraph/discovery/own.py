"""The core's own declarations, and the distributions that have what the core lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import PluginUnavailable
from ..plugin import CommandSpec, Declaration, FormatSpec, ModelSpec, ReportSpec
from .loading import load, missing

COMMANDS = (
    CommandSpec("backends", "delegraph.cli.listing:Backends", "list the backends that are installed"),
    CommandSpec("doctor", "delegraph.cli.listing:Doctor", "examine every plugin; exit code 1 if one is broken"),
    CommandSpec("lower", "delegraph.cli.lowering:Lower", "lower a model and write what a backend makes of it"),
    CommandSpec("completion", "delegraph.cli.completion:Completion", "print a script that completes in a shell"),
)
"""The core's commands. They are looked up here first, so that they work without reading any plugin."""

REPORTS = (
    ReportSpec(".txt", "delegraph.report.formats:TextReport", "as it is printed"),
    ReportSpec(".json", "delegraph.report.formats:JsonReport", "for programs"),
)
OWN: tuple[Declaration, ...] = (*COMMANDS, *REPORTS)
"""All declarations of the core. A plugin's declaration of the same name is found only as ``distribution/name``."""


PROVIDERS: Mapping[tuple[type[Declaration], str], str] = {
    (FormatSpec, ".pte"): "delegraph-executorch",
    (FormatSpec, ".tosa"): "delegraph-tosa",
    (CommandSpec, "check"): "delegraph-devkit",
    (CommandSpec, "coverage"): "delegraph-devkit",
    (CommandSpec, "new-backend"): "delegraph-devkit",
    (CommandSpec, "cache"): "delegraph-analysis",
    **{
        (CommandSpec, name): "delegraph-analysis"
        for name in ("accuracy", "compare", "diff", "inspect", "matrix", "profile", "run")
    },
    (CommandSpec, "generate"): "delegraph-transformers",
    (ModelSpec, "transformers"): "delegraph-transformers",
    **{(ModelSpec, library): "delegraph-vision" for library in ("timm", "torchvision")},
    (CommandSpec, "quantize"): "delegraph-quantize",
    **{(ReportSpec, suffix): "delegraph-analysis" for suffix in (".html", ".htm", ".junit.xml", ".nodes.json")},
}
"""(kind, name) -> the first-party distribution that declares it, for the error if that is not installed."""


def provided(target: str, what: str) -> Any:
    """Import and return ``target``, an object of another first-party distribution.

    Raises PluginUnavailable, with the pip command as hint, if that distribution is not installed. ``what``: the feature
    that needs it, which begins the error's text.
    """
    # a first-party distribution is called as its package: delegraph-analysis has delegraph_analysis
    package = target.partition(":")[0].partition(".")[0]
    if missing([package]):
        distribution = package.replace("_", "-")
        text = f"{what} comes with {distribution}, which is not installed"
        raise PluginUnavailable("plugin-unavailable", text, hint=f"pip install {distribution}")
    return load(target)
