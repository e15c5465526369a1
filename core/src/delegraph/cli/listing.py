"""``delegraph backends``. Importing this module does not import torch."""

from __future__ import annotations

import argparse
import textwrap
import warnings
from typing import Any

from ..command.outcome import Outcome
from ..discovery.plugin_call import PluginCall
from ..discovery.records import BackendInfo, PluginRecord, Status
from ..discovery.registry import default_registry
from ..errors import DelegraphError, DelegraphWarning
from ..io.escape_for_terminal import printable, table
from ..plugin import OptionSpec


class Backends:
    """``delegraph backends``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "-v",
            "--verbose",
            action="store_true",
            help="also show options, formats and origin",
        )
        parser.add_argument(
            "--available",
            action="store_true",
            help=(
                "import the runtimes, and show which backends can run programs here and"
                " now"
            ),
        )

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        """List the backends, and the unusable plugins whose backends are not known. With
        --available, also show which backends can run programs here.
        """
        with warnings.catch_warnings():
            # the list shows the faults of broken plugins
            warnings.simplefilter("ignore", DelegraphWarning)
            infos = default_registry().backends()
        # ``infos`` has the backends of plugins with these statuses, and of plugins with
        # ``faults`` of single backends.
        in_table = (Status.OK, Status.CONFLICT)
        unlisted = [
            p
            for p in default_registry().plugins()
            if p.status not in in_table and not p.faults
        ]
        backends = [_backend_json(info) for info in infos]
        text = _table_of_backends(infos, unlisted, args.verbose)
        if args.available and infos:
            # for each of ``infos``: why it cannot run programs here; "" if it can
            problems = [_why_unavailable(info) for info in infos]
            for backend, problem in zip(backends, problems, strict=True):
                # users of the JSON read "" as yes, and other texts as the reason
                backend["available"] = problem
            rows = [
                [f"{i.name} here:", why or "can run programs"]
                for i, why in zip(infos, problems, strict=True)
            ]
            text = f"{text}\n{table(rows)}"
        content = {
            "backends": backends,
            "plugins_without_backends": [*map(_plugin_json, unlisted)],
        }
        return Outcome("delegraph.backends/1", content, text)


def _why_unavailable(info: BackendInfo) -> str:
    """Return why programs of the backend cannot be run on this host now; "" if they
    can. Imports the runtime. An error of a plugin is such a reason, and not raised.
    """
    if info.status is not Status.OK:
        return f"is {info.status}"
    try:
        runtime = default_registry().runtime_for(info.full_name)
        with PluginCall(runtime, "is_available", registry=default_registry()):
            is_available = runtime.is_available()
    except DelegraphError as e:
        return f"{e.message}; {e.hint}" if e.hint else e.message
    return "" if is_available else f"{runtime.__name__} says that it is not available"


def _table_of_backends(
    infos: list[BackendInfo], unlisted: list[PluginRecord], verbose: bool
) -> str:
    """Return the text of ``delegraph backends``: a table with a row for each backend,
    or with ``verbose`` a paragraph for each.

    ``unlisted``: unusable plugins with unknown backends. Each gets a line after the
    table.
    """
    if not infos and not unlisted:
        return "no backends are installed; try: pip install delegraph-tosa"
    lines: list[str] = []
    if verbose:
        lines += map(_describe_backend, infos)
    elif infos:
        rows = [
            [
                i.name,
                str(i.status),
                f"{i.distribution} {i.version}".strip(),
                i.error or i.spec.summary,
            ]
            for i in infos
        ]
        lines.append(table([["NAME", "STATUS", "FROM", "SUMMARY"], *rows]))
    lines += [
        printable(f"{p.name} ({p.owner}) is {p.status}: {p.error}") for p in unlisted
    ]
    return "\n".join(lines)


def _describe_backend(info: BackendInfo) -> str:
    """Return the lines about one backend in ``delegraph backends --verbose``."""
    facts = [
        ["from", f"{info.distribution} {info.version}".strip()],
        ["location", info.location],
        [
            "backend id",
            f"{info.backend_id} ({info.spec.target}), plugin API {info.spec.api}",
        ],
        ["partitioners", ", ".join(info.partitioners) or "none"],
        ["runtime", "on this host" if info.has_runtime else "none on this host"],
        ["formats", ", ".join(info.formats) or "none"],
    ]
    if info.error:
        facts += [["problem", info.error], ["remedy", info.hint]]
    # "": the options follow, in a table of their own
    facts.append(["options", "" if info.spec.options else "none"])
    options = table([_describe_option(o) for o in info.spec.options])
    title = printable(f"{info.name}  [{info.status}]  {info.spec.summary}".rstrip())
    lines = [title, textwrap.indent(table(facts), "  ")]
    if options:
        lines.append(textwrap.indent(options, "    "))
    return "\n".join(lines)


def _describe_option(option: OptionSpec) -> list[str]:
    """Return the cells for an option: name, type, default, choices and help."""
    default = "no default" if option.default is None else f"default {option.default!r}"
    choices = option.values if option.choices else ""
    notes = "; ".join(filter(None, (choices, option.help)))
    return [option.name, option.type.__name__, default, notes]


_FIELDS_OF_BACKEND = (
    "name backend_id full_name distribution version location error hint formats"
    " partitioners has_runtime has_quantizer"
).split()
_FIELDS_OF_SPEC = ("summary", "api", "target")
_FIELDS_OF_PLUGIN = ("name", "distribution", "version", "location", "error", "hint")


def _backend_json(info: BackendInfo) -> dict[str, Any]:
    """Return the fields of a backend in ``delegraph.backends/1``."""
    return {
        **{name: getattr(info, name) for name in _FIELDS_OF_BACKEND},
        **{name: getattr(info.spec, name) for name in _FIELDS_OF_SPEC},
        "is_default": info.spec.default,
        "status": info.status.value,
        "options": [vars(option) for option in info.spec.options],
    }


def _plugin_json(plugin: PluginRecord) -> dict[str, Any]:
    """Return the fields of a plugin in ``delegraph.backends/1``."""
    content = {name: getattr(plugin, name) for name in _FIELDS_OF_PLUGIN}
    return {**content, "status": plugin.status.value}
