"""Examine each plugin in a process of its own, and report faults: ``delegraph doctor``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from delegraph.discovery.first_party import COMMANDS
from delegraph.discovery.installed import is_named, names_in
from delegraph.discovery.records import (
    ALLOW,
    DENY,
    BackendEntry,
    PluginRecord,
    key_of,
)
from delegraph.discovery.registry import Registry, default_registry
from delegraph.plugin import BackendSpec, CommandSpec

from .probe import SECONDS, probe
from .report import DoctorReport, build_report


def examine(
    registry: Registry | None = None, seconds: float | None = None
) -> DoctorReport:
    """Examine every plugin and all of its targets, each plugin in a child process.

    ``registry`` is by default that of this process. An unused registry is read here,
    without the plugins whose first import ended their child process. Each plugin may
    take ``seconds``.
    """
    registry = default_registry() if registry is None else registry
    probed = probe(registry.loadable(), seconds or SECONDS)
    fatal = {
        key: result.fatal for key, result in probed.items() if result.fatal is not None
    }
    registry.read(refused=fatal)
    plugins = registry.plugins()
    notes = (
        *_unknown_names(plugins),
        *_absent_backends(plugins),
        *_command_conflicts(plugins),
    )
    return build_report(plugins, notes, probed)


def _unknown_names(plugins: Sequence[PluginRecord]) -> Iterator[str]:
    """Yield a note for each name in the environment variables that no plugin has."""
    for variable in (ALLOW, DENY):
        for name in names_in(variable):
            if not any(is_named(record, [name]) for record in plugins):
                yield f"{variable} names {name!r}, which is not installed"


def _absent_backends(plugins: Iterable[PluginRecord]) -> Iterator[str]:
    """Yield a note for each declaration whose backend is not installed."""
    known = {
        key
        for record in plugins
        for spec in record.backends
        for key in BackendEntry(spec, record).keys
    }
    for record in plugins:
        for spec in record.declarations:
            if isinstance(spec, BackendSpec) or spec.alone:
                continue
            if key_of(spec.key) not in known:
                yield (
                    f"{record.owner} declares a {spec.title}, which is not installed"
                )


def _command_conflicts(plugins: Iterable[PluginRecord]) -> Iterator[str]:
    """Yield a note for each command of a plugin if delegraph itself or another plugin
    has a command of this name, too.
    """
    owners_by_command: defaultdict[str, list[str]] = defaultdict(list)
    for command in COMMANDS:
        owners_by_command[command.name].append("delegraph itself")
    commands_of_plugins: list[tuple[str, PluginRecord]] = []
    for record in plugins:
        for spec in record.declarations:
            if isinstance(spec, CommandSpec):
                owners_by_command[spec.name].append(record.address)
                commands_of_plugins.append((spec.name, record))
    for name, record in commands_of_plugins:
        owners = owners_by_command[name]
        other_owners = [owner for owner in owners if owner != record.address]
        if other_owners:
            yield (
                f"{record.address} has a command {name!r}, and so has"
                f" {' and '.join(other_owners)};"
                f" call it as {record.distribution}/{name}"
            )
