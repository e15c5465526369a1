"""The protocol that commands implement, and the parser of ``--option``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Protocol

from ..discovery.options import from_text, split_assignments
from ..discovery.registry import default_registry
from .outcome import Outcome


class Command(Protocol):
    """The target of a ``CommandSpec``: a class with these two static methods."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to ``parser``, which already has ``--json`` and
        ``--debug``.

        This must not import torch: ``delegraph COMMAND --help`` would become slow.
        Shell completion suggests values for arguments with the metavar BACKEND, MODEL or
        BACKEND.OPTION=VALUE, and for positional arguments with the metavar FILE.
        """

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        """Do the work and return its result, which ``delegraph`` prints.

        During the call, ``sys.stdout`` is stderr: only the Outcome is printed to
        stdout. Raises ``delegraph.errors.UsageError`` for wrong arguments (exit code
        2), another DelegraphError if the work fails (exit code 1). Any other exception
        is reported as a defect of the plugin.
        """


def parse_options(
    backends: Sequence[str], assignments: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return backend -> {option: value}, for texts ``BACKEND.OPTION=VALUE`` of
    ``--option``.

    Raises OptionError for a wrong option, and for an option of a backend that is not in
    ``backends``; BackendNotFound or PluginConflict for a name in ``backends``.
    """
    specs = {name: default_registry().spec(name) for name in backends}
    texts = split_assignments(assignments, backends)
    return {
        name: from_text(specs[name].options, values, f"backend {name!r}")
        for name, values in texts.items()
    }
