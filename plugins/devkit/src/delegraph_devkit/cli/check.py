"""``delegraph check``: the conformance kit on the command line.

Wrong names and options are found first.
"""

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
"""The budget of ``--quick``: with what processes take to start, a minute on an idle
machine.
"""
_ABOUT_RESULTS = ["accepted_compiles", "numerics", "control_flow"]
"""The checks that run what was compiled.

The first two take operators, the last one has programs of its own.
"""


class Check:
    """``delegraph check``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "backend",
            metavar="BACKEND",
            help="its name, as `delegraph backends` lists it",
        )
        parser.add_argument(
            "--option", action="append", default=[], metavar="BACKEND.OPTION=VALUE"
        )
        parser.add_argument(
            "--quick",
            action="store_true",
            help="end within a minute, with as many programs as that allows",
        )
        parser.add_argument(
            "--device",
            action="store_true",
            help="run the programs in its device half, and only that",
        )
        text = "its compiler may refuse what its support check took: no failure"
        parser.add_argument("--may-refuse", action="store_true", help=text)
        parser.add_argument(
            "--seconds",
            type=_seconds,
            default=0.0,
            metavar="S",
            help="then try others for so long",
        )
        parser.add_argument(
            "--operator",
            action="append",
            default=[],
            metavar="NAME",
            help=(
                "try this one alone: on all its samples, NaN, infinities and wide"
                " integers"
            ),
        )
        parser.add_argument(
            "--verbose",
            action="store_true",
            help="list every program that was tried, and its outcome",
        )
        parser.add_argument(
            "--only",
            action="append",
            default=[],
            metavar="CHECK",
            help="run this check; may be repeated",
        )
        parser.add_argument(
            "--tolerance",
            type=float,
            help="largest error, relative to an output's largest value",
        )
        parser.add_argument(
            "--example",
            metavar="MODEL",
            help="path.py[:function]: a model that it takes in part",
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
    _known(args.only, devkit.CHECKS, args.operator)
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
            backend.programs[0].exported  # noqa: B018 - raises what is wrong with it, before any check
    chosen = args.only or (
        _ABOUT_RESULTS[: 2 if args.operator else 3]
        if args.operator or args.device
        else []
    )
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
    """As each check ends, also where stderr is a file: who waits sees that something
    happens, and what.
    """
    tell(
        f"{result.name}: {result.status}, {result.summary() or 'nothing to count'} "
        f" {result.seconds:.1f} s"
    )


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < math.inf:
        raise ValueError
    return seconds


def _known(names: Iterable[str], checks: Iterable[str], operators: list[str]) -> None:
    unknown = [n for n in names if n not in checks]
    if unknown:
        raise UsageError(
            "usage-invalid",
            f"there is no check {unknown[0]!r}; checks: {', '.join(checks)}",
        )
    if operators:
        from ..opinfo import unknown as unknown_to

        for name in unknown_to(operators):
            raise UsageError(
                "usage-invalid",
                f"torch's table of operators has no {name!r}",
                hint="such as add or relu",
            )


class _ModelFile:
    """The example as MODEL names it; unlike a function of that file it can be sent to
    another process.
    """

    def __init__(self, text: str) -> None:
        check_model(text)
        self.text = text

    @property
    def source(self) -> str:
        """Python that makes it again."""
        load = "from delegraph_devkit.model_file import load_example"
        return f"{load}\n\nmodel, inputs = load_example({self.text!r})\n"

    def __call__(self) -> Example:
        from ..model_file import load_example

        return load_example(self.text)
