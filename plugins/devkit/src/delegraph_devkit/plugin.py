"""Declare the commands of this distribution.

Imports neither torch nor numpy.
"""

from __future__ import annotations

from delegraph.plugin import CommandSpec, hookimpl


@hookimpl
def delegraph_commands() -> list[CommandSpec]:
    return [
        CommandSpec(
            name="check",
            target="delegraph_devkit.cli.check:Check",
            summary="check that a backend keeps the rules of all backends",
        ),
        CommandSpec(
            name="coverage",
            target="delegraph_devkit.cli.coverage:Coverage",
            summary="write the table of operators that a backend accepts",
        ),
        CommandSpec(
            name="doctor",
            target="delegraph_devkit.cli.doctor:Doctor",
            summary="examine every plugin; exit code 1 if one is broken",
        ),
        CommandSpec(
            name="new-backend",
            target="delegraph_devkit.cli.new_backend:NewBackend",
            summary="write a package for a backend of your own",
        ),
    ]
