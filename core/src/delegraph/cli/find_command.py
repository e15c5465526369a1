"""Finds commands by name: those of the core and those of plugins."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..command.outcome import Outcome
from ..discovery.first_party import COMMANDS
from ..discovery.import_by_name import load
from ..discovery.plugin_call import PluginCall
from ..discovery.records import canonical
from ..discovery.registry import default_registry
from ..errors import ContractViolation, DelegraphError, PluginFailed
from ..plugin import CommandSpec

if TYPE_CHECKING:
    from ..command.protocol import Command

BUILT_IN = {spec.name: spec for spec in COMMANDS}


def list_commands() -> list[tuple[str, str]]:
    """Return (name to type, summary) of each command: first those of the core, then
    those of plugins.

    If several commands have one name, the user types ``distribution/name`` for those of
    plugins. The code of the commands is not imported, only the plugins' declarations.
    """
    declared = default_registry().declared(CommandSpec)
    names = [*BUILT_IN, *(spec.name for spec, _ in declared)]
    commands = [(spec.name, spec.summary) for spec in BUILT_IN.values()]
    for spec, record in declared:
        name = spec.name
        if names.count(name) > 1:
            name = f"{canonical(record.distribution)}/{name}"
        # ``lstrip``, because the summary may be empty
        commands.append((name, f"{spec.summary} ({record.owner})".lstrip()))
    return commands


def find_command(name: str) -> type[Command] | _PluginCommand:
    """Import and return the command ``name``, which may be ``distribution/name``.

    Raises UsageError if there is no such command, or PluginConflict, PluginUnavailable
    or PluginBroken.
    """
    if name in BUILT_IN:
        # ``installed=False`` skips the search for files of the working directory that
        # shadow the module: no file can shadow a module of this package
        command: type[Command] = load(BUILT_IN[name].target, installed=False)
        return command
    return _PluginCommand(default_registry().get(CommandSpec, name))


@dataclass(frozen=True)
class _PluginCommand:
    """Wraps a plugin's command, so that errors of the command name the plugin."""

    target: type[Command]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of the plugin's command to ``parser``."""
        with PluginCall(self.target, "add_arguments", registry=default_registry()):
            self.target.add_arguments(parser)

    def run(self, args: argparse.Namespace) -> Outcome:
        """Run the plugin's command. Raises ContractViolation if the command returns no
        Outcome.

        A DelegraphError of the command is raised without the plugin's name. Any other
        exception becomes PluginFailed, which names the plugin.
        """
        work = PluginCall(self.target, "run", registry=default_registry())
        try:
            with work:
                outcome = self.target.run(args)
        except DelegraphError as e:
            if e.raised_by == work.text and not isinstance(e, PluginFailed):
                # commands report wrong arguments by a DelegraphError, so the plugin has
                # no defect
                e.raised_by = None
            raise
        if not isinstance(outcome, Outcome):
            raise ContractViolation(
                "contract-violation",
                f"{work.text}, returned {type(outcome).__name__} and no"
                " delegraph.command.Outcome",
            )
        return outcome
