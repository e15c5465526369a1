"""``delegraph backends`` and ``delegraph doctor``. Importing this module imports no torch."""

from __future__ import annotations

import argparse
import warnings
from typing import Any

from ..catalogue import BackendInfo
from ..discovery import PluginRecord, Status
from ..errors import DelegraphWarning
from ..plugin import OptionSpec, expected
from ..registry import default_registry
from .outcome import Outcome, progress, table


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the commands to the parser."""
    backends = commands.add_parser("backends", parents=[common], help="list the backends that are installed")
    backends.add_argument("-v", "--verbose", action="store_true", help="also options, formats and origin")
    backends.set_defaults(command=_backends)
    doctor = commands.add_parser("doctor", parents=[common], help="examine every plugin; exit code 1 if one is broken")
    doctor.set_defaults(command=_doctor)


def _backends(args: argparse.Namespace) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DelegraphWarning)  # the list shows it
        registry = default_registry()
        infos = registry.backends()
    silent = [p for p in registry.plugins() if p.status is not Status.OK and not p.faults]
    silent = [p for p in silent if p.status is not Status.CONFLICT]
    content = {"backends": [_json(i) for i in infos], "plugins_without_backends": [_plugin_json(p) for p in silent]}
    return Outcome("delegraph.backends/1", content, _listing(infos, silent, args.verbose))


def _listing(infos: list[BackendInfo], silent: list[PluginRecord], verbose: bool) -> str:
    if not infos and not silent:
        return "no backends are installed; try: pip install delegraph-tosa"
    if verbose:
        shown = [_described(i) for i in infos]
    else:
        rows = [[i.name, str(i.status), f"{i.distribution} {i.version}".strip(), i.error or i.summary] for i in infos]
        shown = [table([["NAME", "STATUS", "FROM", "SUMMARY"], *rows])] if rows else []
    return "\n".join([*shown, *(f"{p.name} ({p.owner}) is {p.status}: {p.error}" for p in silent)])


def _described(info: BackendInfo) -> str:
    facts = [
        ["from", f"{info.distribution} {info.version}".strip() + f" ({info.location})"],
        ["backend id", f"{info.backend_id} ({info.target}), plugin API {info.api}"],
        ["partitioners", ", ".join(info.partitioners) or "none"],
        ["runtime", "yes" if info.has_runtime else "none on this host"],
        ["formats", ", ".join(info.formats) or "none"],
        *([["problem", info.error], ["what to do", info.hint]] if info.error else []),
        *[["option", _option(o)] for o in info.options],
    ]
    body = "\n".join("  " + line for line in table(facts).splitlines())
    return f"{info.name}  [{info.status}]  {info.summary}\n{body}"


def _option(option: OptionSpec) -> str:
    default = "" if option.default is None else f", default {option.default!r}"
    return f"{option.name} ({expected(option)}{default})  {option.help}".rstrip()


def _json(info: BackendInfo) -> dict[str, Any]:
    return {
        **{k: getattr(info, k) for k in _PLAIN_FIELDS},
        "status": info.status.value,
        "full_name": info.full_name,
        "options": [vars(o) for o in info.options],
    }


_PLAIN_FIELDS = (
    *("name", "backend_id", "distribution", "version", "location", "error", "hint", "summary", "api", "target"),
    *("formats", "partitioners", "has_runtime"),
)


def _plugin_json(plugin: PluginRecord) -> dict[str, Any]:
    fields = ("name", "distribution", "version", "location", "error", "hint")
    return {**{k: getattr(plugin, k) for k in fields}, "status": plugin.status.value}


def _doctor(args: argparse.Namespace) -> Outcome:
    with warnings.catch_warnings(), progress("examining plugins"):
        warnings.simplefilter("ignore", DelegraphWarning)  # the report shows it
        report = default_registry().doctor()
    return Outcome("delegraph.doctor/1", report.to_json(), str(report), 0 if report.healthy else 1)
