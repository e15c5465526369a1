"""Examine each plugin in a process of its own, and report faults: ``delegraph doctor``."""

from __future__ import annotations

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

    ``registry`` is by default that of this process. If it is still unused, it refuses
    plugins that ended the child during the import of their light module. Each plugin
    may take ``seconds``.
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
        *_same_commands(plugins),
    )
    return build_report(plugins, notes, probed)


def _unknown_names(plugins: Sequence[PluginRecord]) -> Iterator[str]:
    """A sentence for each name in the environment variables that no plugin has."""
    for variable in (ALLOW, DENY):
        for name in names_in(variable):
            if not any(is_named(record, [name]) for record in plugins):
                yield f"{variable} names {name!r}, which is not installed"


def _absent_backends(plugins: Iterable[PluginRecord]) -> Iterator[str]:
    """A sentence for each declaration for a backend that is not installed."""
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


def _same_commands(plugins: Iterable[PluginRecord]) -> Iterator[str]:
    """Yield a note for each command of a plugin that is also one of the core or of
    another plugin.
    """
    owners = [(spec.name, "delegraph itself") for spec in COMMANDS]
    declared = []
    for record in plugins:
        for spec in record.declarations:
            if isinstance(spec, CommandSpec):
                declared.append((spec.name, record))
    owners += [(name, record.address) for name, record in declared]
    for name, record in declared:
        others = [
            owner
            for other, owner in owners
            if other == name and owner != record.address
        ]
        if others:
            yield (
                f"{record.address} has a command {name!r}, and so has"
                f" {' and '.join(others)}; call it as {record.distribution}/{name}"
            )
