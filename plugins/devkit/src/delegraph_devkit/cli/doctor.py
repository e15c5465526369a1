"""Examine plugins: ``delegraph doctor``. This module does not import torch."""

from __future__ import annotations

import argparse
import warnings

from delegraph.command import Outcome, progress
from delegraph.errors import DelegraphWarning

from ..doctor import examine


class Doctor:
    """``delegraph doctor``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        text = "time limit for the import of one plugin (default 60)"
        parser.add_argument("--timeout", type=_seconds, metavar="SECONDS", help=text)

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        """Examine all plugins; exit with code 1 if an enabled plugin is unusable."""
        with warnings.catch_warnings(), progress("examining plugins"):
            # the report contains the same problems
            warnings.simplefilter("ignore", DelegraphWarning)
            report = examine(seconds=args.timeout)
        return Outcome(
            "delegraph.doctor/1",
            report.to_json(),
            str(report),
            0 if report.healthy else 1,
        )


def _seconds(text: str) -> float:
    """Return a positive number of seconds; for argparse."""
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError(text)
    return seconds


_seconds.__name__ = "number of seconds"  # argparse shows this name in errors
