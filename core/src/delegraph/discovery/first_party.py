"""The core's declarations of plugins, and those of our other distributions.

The latter are in our_distributions.json, because a distribution that is not installed
declares nothing. So an error can name the one to install.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import PluginUnavailable
from ..plugin import (
    BackendSpec,
    CommandSpec,
    CompilerSpec,
    Declaration,
    FormatSpec,
    ModelSpec,
    ReportSpec,
)
from .import_by_name import load, missing

COMMANDS = (
    CommandSpec(
        "backends",
        "delegraph.cli.listing:Backends",
        "list the backends that are installed",
    ),
    CommandSpec(
        "lower",
        "delegraph.cli.lowering:Lower",
        "lower a model and save the program",
    ),
    CommandSpec(
        "completion",
        "delegraph.cli.completion:Completion",
        "print a script that completes in a shell",
    ),
)
"""The core's commands. The command line looks here first, so that these commands work
without reading any plugin.
"""

REPORTS = (
    ReportSpec(".txt", "delegraph.report.formats:TextReport", "as it is printed"),
    ReportSpec(".json", "delegraph.report.formats:JsonReport", "for programs"),
)
CORE_DECLARATIONS: tuple[Declaration, ...] = (*COMMANDS, *REPORTS)
"""All declarations of the core. A plugin's declaration of the same name is found only
as ``distribution/name``.
"""

_GROUPS: Mapping[type[Declaration], str] = {
    BackendSpec: "backends",
    CommandSpec: "commands",
    CompilerSpec: "compilers",
    FormatSpec: "formats",
    ModelSpec: "models",
    ReportSpec: "reports",
}
"""Kind of declaration -> its group in our_distributions.json."""


class Provider(NamedTuple):
    """A distribution of this project. ``install``: the text for ``pip install``, with
    an extra if one is needed, such as ``delegraph-iree[engine]``.
    """

    distribution: str
    install: str

    @property
    def hint(self) -> str:
        """Return the command that installs the distribution."""
        # quoted, because a shell may expand the brackets of an extra
        name = f'"{self.install}"' if "[" in self.install else self.install
        return f"pip install {name}"

    def not_installed(self, title: str) -> str:
        """Return the text of the error that ``title``, such as ``the flag --cache``, needs
        this distribution.
        """
        return f"{title} comes with {self.distribution}, which is not installed"


def provider_of(kind: type[Declaration] | str, name: str) -> Provider | None:
    """Return the distribution of this project that declares ``name``, installed or not;
    None if no distribution declares it.

    ``kind``: the class of the declaration, or "runtimes" for runtimes that execute
    whole files, or "flags" for flags of compilers. Backends are found by their name and
    by their id.
    """
    # "" is in no group: the distributions have no declarations of that kind
    group = kind if isinstance(kind, str) else _GROUPS.get(kind, "")
    return _providers().get((group, name))


def names_of_backends() -> dict[str, Provider]:
    """Return the backends of this project by name, whether they are installed or not."""
    return {
        name: Provider(distribution, described.get("install", distribution))
        for distribution, described in _our_distributions().items()
        for name in described.get("backends", {})
    }


@cache
def _providers() -> dict[tuple[str, str], Provider]:
    """Return (group in our_distributions.json, name) -> the distribution that declares
    it.
    """
    found = {}
    for distribution, described in _our_distributions().items():
        plain = Provider(distribution, distribution)
        # "install" may have an extra, such as ``delegraph-iree[engine]``, which only
        # backends, models and runtimes need
        with_extra = Provider(distribution, described.get("install", distribution))
        for group in (*_GROUPS.values(), "runtimes", "flags"):
            needs_extra = group in ("backends", "models", "runtimes")
            for name in described.get(group, ()):
                found[group, name] = with_extra if needs_extra else plain
        for backend_id in described.get("backends", {}).values():
            found["backends", backend_id] = with_extra
    return found


@cache
def _our_distributions() -> dict[str, dict[str, Any]]:
    """Return our_distributions.json: distribution -> its declarations."""
    text = Path(__file__).with_name("our_distributions.json").read_text("utf-8")
    content: dict[str, dict[str, Any]] = json.loads(text)
    return content


def provided(target: str, feature: str) -> Any:
    """Import and return ``target``, an object of another first-party distribution.

    Raises PluginUnavailable, with the pip command as hint, if that distribution is not
    installed. ``feature``: the feature that needs ``target``, for the error.
    """
    # a first-party distribution is called like its package: delegraph-analysis has the
    # package delegraph_analysis
    package = target.partition(":")[0].partition(".")[0]
    if missing([package]):
        distribution = package.replace("_", "-")
        raise PluginUnavailable(
            "plugin-unavailable",
            f"{feature} comes with {distribution}, which is not installed",
            hint=f"pip install {distribution}",
        )
    return load(target)
