"""The contract of a command, and how it reads ``--option``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Protocol

from ..discovery.options import from_text, split_assignments
from ..discovery.registry import default_registry
from ..io.escape import table
from .model import check_model, load_model
from .outcome import Outcome, progress

__all__ = ["Command", "Outcome", "check_model", "load_model", "parse_options", "progress", "table"]


class Command(Protocol):
    """The target of a ``CommandSpec``: a class with these two static methods."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments. Every command has ``--json`` and ``--debug`` already.

        ``delegraph COMMAND --help`` calls this, too, so it must import nothing heavy. Shell completion knows values for
        arguments whose metavar is BACKEND, MODEL, BACKEND.OPTION=VALUE or, for positional ones, FILE.
        """

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        """Do the work. Meanwhile ``sys.stdout`` is stderr, because the result is what the Outcome has.

        Raise ``delegraph.errors.UsageError`` for wrong arguments (exit code 2), another DelegraphError if the work
        fails (exit code 1). Any other exception is reported as a fault of the plugin.
        """


def parse_options(backends: Sequence[str], assignments: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The values of ``--option BACKEND.OPTION=VALUE``, by backend. Raises OptionError or BackendNotFound."""
    specs = {name: default_registry().spec(name) for name in backends}
    texts = split_assignments(assignments, backends)
    return {name: from_text(specs[name].options, given, f"backend {name!r}") for name, given in texts.items()}
