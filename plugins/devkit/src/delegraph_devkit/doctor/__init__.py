"""``delegraph doctor``: examines each plugin in a process of its own, and reports what
is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from delegraph.discovery.first_party import COMMANDS
from delegraph.discovery.records import PluginRecord
from delegraph.discovery.registry import Registry, default_registry
from delegraph.plugin import CommandSpec

from .probe import SECONDS, probe
from .report import DoctorReport, build_report


def examine(
    registry: Registry | None = None, seconds: float | None = None
) -> DoctorReport:
    """Examine every plugin and all of its targets, each plugin in a child process for
    at most ``seconds``.

    ``registry``: None for that of this process. If it has not been used before, plugins
    that ended the child while their light module was imported are not loaded into this
    process. ``seconds``: None for the default.
    """
    registry = default_registry() if registry is None else registry
    probed = probe(registry.loadable(), seconds or SECONDS)
    fatal = {
        key: result.fatal for key, result in probed.items() if result.fatal is not None
    }
    registry.read(refused=fatal)
    plugins = registry.plugins()
    notes = (*registry.notes(), *_same_commands(plugins))
    return build_report(plugins, notes, probed)


def _same_commands(plugins: Iterable[PluginRecord]) -> Iterator[str]:
    """A sentence for each command of a plugin that shares its name with a command of
    the core or of another plugin.
    """
    owners = [(spec.name, "delegraph itself") for spec in COMMANDS]
    declared = [
        (spec.name, record)
        for record in plugins
        for spec in record.declarations
        if isinstance(spec, CommandSpec)
    ]
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
                f" {' and '.join(others)}; it is"
                f" {record.distribution}/{name}"
            )
