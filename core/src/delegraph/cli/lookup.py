"""The commands that there are, delegraph's own and those of plugins, and the one that is given."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from ..command.outcome import Outcome
from ..discovery.attribution import AtWork
from ..discovery.distributions import canonical
from ..discovery.index import COMMAND_PROVIDERS
from ..discovery.loading import missing
from ..discovery.record import PluginRecord, Status, suggestion
from ..discovery.registry import default_registry
from ..errors import ContractViolation, DelegraphError, PluginConflict, PluginFailed, PluginUnavailable, UsageError
from ..plugin import CommandSpec

if TYPE_CHECKING:
    from ..command.contract import Command

BUILT_IN = {
    spec.name: spec
    for spec in (
        CommandSpec("backends", f"{__package__}.listing:Backends", "list the backends that are installed"),
        CommandSpec("doctor", f"{__package__}.listing:Doctor", "examine every plugin; exit code 1 if one is broken"),
        CommandSpec("lower", f"{__package__}.lowering:Lower", "lower a model and write what a backend makes of it"),
        CommandSpec("compare", f"{__package__}.compare:Compare", "lower a model for several backends, side by side"),
        CommandSpec("diff", f"{__package__}.diff:Diff", "show what is other in one report than in another"),
        CommandSpec("run", f"{__package__}.files:Run", "run a file such as .tosa on this host"),
        CommandSpec("inspect", f"{__package__}.files:Inspect", "show what is in a file such as .tosa"),
        CommandSpec("completion", f"{__package__}.completion:Completion", "print a script that completes in a shell"),
    )
}
"""They are found before those of plugins, which they do not wait for."""


def list_commands() -> list[tuple[str, str]]:
    """What can be typed, and its summary. Imports the plugins' light modules, and no target."""
    own = [(spec.name, spec.summary) for spec in BUILT_IN.values()]
    declared = _of_plugins()
    named = Counter([*BUILT_IN, *(spec.name for spec, _ in declared)])
    others = [
        (spec.name if named[spec.name] == 1 else _full_name(spec, record), f"{spec.summary} ({record.owner})".lstrip())
        for spec, record in declared
    ]
    return own + others


def find_command(name: str) -> type[Command] | _PluginCommand:
    """Import the command of this name, or of this ``distribution/name``.

    Raises UsageError, PluginConflict, PluginUnavailable or PluginBroken.
    """
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].target.partition(":")
        command: type[Command] = getattr(import_module(module), attribute)
        return command
    fitting = [(spec, record) for spec, record in _of_plugins() if name in (spec.name, _full_name(spec, record))]
    if not fitting:
        raise _not_found(name)
    if len(fitting) > 1:
        owners = " and ".join(sorted(record.address for _, record in fitting))
        hint = " or ".join(f"delegraph {_full_name(spec, record)}" for spec, record in fitting)
        raise PluginConflict("plugin-conflict", f"several plugins have a command {name!r}: {owners}", hint=hint)
    [(spec, record)] = fitting
    if absent := missing(spec.requires):
        text = f"the command {name!r} of {record.owner} needs {', '.join(absent)}, which is not installed"
        raise PluginUnavailable("plugin-unavailable", text, hint=spec.install_hint or None)
    return _PluginCommand(default_registry().resolve(spec, record))


def list_collisions() -> Iterator[str]:
    """A sentence for each name that several commands have."""
    owners = {name: ["delegraph itself"] for name in BUILT_IN}
    declared = _of_plugins()
    for spec, record in declared:
        owners.setdefault(spec.name, []).append(record.address)
    for spec, record in declared:
        if others := [owner for owner in owners[spec.name] if owner != record.address]:
            also = " and ".join(others)
            yield f"{record.address} has a command {spec.name!r}, and so has {also}; it is {_full_name(spec, record)}"


def _of_plugins() -> list[tuple[CommandSpec, PluginRecord]]:
    records = default_registry().plugins()
    declared = [(spec, r) for r in records for spec in r.declarations if isinstance(spec, CommandSpec)]
    return sorted(declared, key=lambda pair: (pair[0].name, pair[1].distribution))


def _full_name(spec: CommandSpec, record: PluginRecord) -> str:
    return f"{canonical(record.distribution)}/{spec.name}"


def _not_found(name: str) -> DelegraphError:
    known = [typed for typed, _ in list_commands()]
    distribution = COMMAND_PROVIDERS.get(name)
    if distribution is None:
        text = f"there is no command {name!r}{suggestion(name, known)} (commands: {', '.join(known)})"
        return UsageError(
            "usage-invalid", text, hint="delegraph --help; `delegraph doctor` lists plugins that are broken"
        )
    for record in default_registry().plugins():
        if canonical(record.distribution) == distribution and record.status is not Status.OK:
            text = f"the command {name!r} comes with {record.owner}, which is {record.status}: {record.error}"
            return UsageError("usage-invalid", text, hint=record.hint or None)
    text = f"the command {name!r} comes with {distribution}, which is not installed"
    return UsageError("usage-invalid", text, hint=f"pip install {distribution}")


@dataclass(frozen=True)
class _PluginCommand:
    """A command at work for its plugin: what it raises names the plugin."""

    target: type[Command]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        with AtWork(self.target, "add_arguments", registry=default_registry()):
            self.target.add_arguments(parser)

    def run(self, args: argparse.Namespace) -> Outcome:
        work = AtWork(self.target, "run", registry=default_registry())
        try:
            with work:
                outcome = self.target.run(args)
        except DelegraphError as e:
            if e.raised_by == work.text and not isinstance(e, PluginFailed):
                e.raised_by = None  # what the command says on purpose is its answer to the user, and no fault
            raise
        if not isinstance(outcome, Outcome):
            text = f"{work.text}, returned {type(outcome).__name__} and no delegraph.command.Outcome"
            raise ContractViolation("contract-violation", text)
        return outcome
