"""Run the conformance kit on the command line, as ``delegraph check``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

import delegraph
from delegraph.command import Outcome, check_model, parse_options, progress, tell
from delegraph.errors import UsageError

if TYPE_CHECKING:
    from ..check_result import CheckResult
    from ..programs import Example

QUICK_SECONDS = 45.0
"""The budget of ``--quick``.

With the start of processes, the command takes a minute on an idle machine.
"""
_OF_OPERATORS = ["accepted_compiles", "numerics"]
"""The checks that ``--operator`` restricts."""
_ON_DEVICE = [*_OF_OPERATORS, "control_flow"]
"""The checks that ``--device`` runs in the device half."""


class Check:
    """``delegraph check``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "backend",
            metavar="BACKEND",
            help="name of the backend; `delegraph backends` lists the names",
        )
        parser.add_argument(
            "--option", action="append", default=[], metavar="BACKEND.OPTION=VALUE"
        )
        parser.add_argument(
            "--quick",
            action="store_true",
            help="end within a minute, with fewer programs",
        )
        parser.add_argument(
            "--device",
            action="store_true",
            help="run only the checks of results, in the device half of the backend",
        )
        text = (
            "do not fail if the compiler refuses calls that its support check accepts"
        )
        parser.add_argument("--may-refuse", action="store_true", help=text)
        parser.add_argument(
            "--seconds",
            type=_seconds,
            default=0.0,
            metavar="S",
            help="try further programs for S seconds",
        )
        parser.add_argument(
            "--operator",
            action="append",
            default=[],
            metavar="NAME",
            help=(
                "check only this operator, with all its samples, NaN, infinities and"
                " wide integers; may be repeated"
            ),
        )
        parser.add_argument(
            "--verbose",
            action="store_true",
            help="list every program with its outcome",
        )
        parser.add_argument(
            "--only",
            action="append",
            default=[],
            metavar="CHECK",
            help="run only this check; may be repeated",
        )
        parser.add_argument(
            "--tolerance",
            type=float,
            help="largest error, relative to the largest value of an output",
        )
        parser.add_argument(
            "--example",
            metavar="MODEL",
            help="path.py[:function]: a model that the backend accepts in part",
        )

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        return _check(args)


def _check(args: argparse.Namespace) -> Outcome:
    options = parse_options([args.backend], args.option).get(args.backend, {})
    example = None if args.example is None else _ModelFile(args.example)
    with progress("importing torch"):
        import delegraph_devkit as devkit

        delegraph.get_backend(args.backend)
    _require_known(args.only, devkit.CHECKS, args.operator)
    backend = devkit.BackendUnderTest(
        args.backend,
        options,
        devkit.TOLERANCE if args.tolerance is None else args.tolerance,
        example,
        gate=devkit.QUICK_GATE if args.quick else devkit.GATE,
        seconds=args.seconds,
        operators=tuple(args.operator),
        device=args.device,
        may_refuse=args.may_refuse,
        budget=QUICK_SECONDS if args.quick else 0.0,
        tell=lambda text: tell(f"  {text}"),
    )
    if example is not None:
        with progress("exporting the example"):
            backend.programs[0].exported  # noqa: B018 - raises errors of the example first
    chosen = args.only
    if not chosen and args.operator:
        chosen = _OF_OPERATORS
    elif not chosen and args.device:
        chosen = _ON_DEVICE
    report = devkit.run_checks(
        backend, chosen, lambda name: progress(f"checking {name}"), _tell_result
    )
    text = str(report)
    content = report.to_json()
    if args.verbose:
        text = f"{backend.sweep}\n\n{text}"
        content["programs"] = [asdict(o) for o in backend.sweep.outcomes]
    return Outcome(devkit.SCHEMA, content, text, 0 if report.passed else 1)


def _tell_result(result: CheckResult) -> None:
    """Print a result as soon as its check ends, also if stderr is a file."""
    summary = result.summary() or "no figures"
    tell(f"{result.name}: {result.status}, {summary}  {result.seconds:.1f} s")


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < math.inf:
        raise ValueError
    return seconds


def _require_known(
    names: Iterable[str], checks: Iterable[str], operators: list[str]
) -> None:
    for name in names:
        if name not in checks:
            raise UsageError(
                "usage-invalid",
                f"there is no check {name!r}; checks: {', '.join(checks)}",
            )
    if operators:
        from ..opinfo import require_operators

        require_operators(operators)


class _ModelFile:
    """The example that a MODEL names.

    Other processes can import it, which a function of that file does not permit.
    """

    def __init__(self, text: str) -> None:
        check_model(text)
        self.text = text

    @property
    def source(self) -> str:
        """Return Python that makes the example."""
        load = "from delegraph_devkit.model_file import load_example"
        return f"{load}\n\nmodel, inputs = load_example({self.text!r})\n"

    def __call__(self) -> Example:
        from ..model_file import load_example

        return load_example(self.text)
