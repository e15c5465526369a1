"""``delegraph check``: the conformance kit on the command line. What can be wrong with it is found before torch."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from delegraph.cli import model
from delegraph.cli.outcome import Outcome, UsageError, progress
from delegraph.discovery.options import from_text, split_assignments
from delegraph.discovery.registry import default_registry


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to the parser."""
    check = commands.add_parser("check", parents=[common], help="check that a backend keeps the rules of all backends")
    check.add_argument("backend", metavar="BACKEND", help="its name, as `delegraph backends` lists it")
    check.add_argument("--option", action="append", default=[], metavar="OPTION=VALUE")
    check.add_argument("--quick", action="store_true", help="try 100 operators and random programs instead of 600")
    check.add_argument("--seconds", type=_seconds, default=0.0, metavar="S", help="then try others for so long")
    check.add_argument(
        "--operator", action="append", default=[], metavar="NAME", help="try this one, on all its samples"
    )
    check.add_argument("--verbose", action="store_true", help="list every program that was tried, and what came of it")
    check.add_argument("--only", action="append", default=[], metavar="CHECK", help="run this check; may be repeated")
    check.add_argument("--tolerance", type=float, help="largest error, relative to an output's largest value")
    check.add_argument("--example", metavar="MODEL", help="path.py[:function]: a model that the backend takes in part")
    check.set_defaults(command=_check)


def _check(args: argparse.Namespace) -> Outcome:
    registry = default_registry()
    spec = registry.spec(args.backend)
    texts = split_assignments(args.option, [args.backend]).get(args.backend, {})
    options = from_text(spec.options, texts, f"backend {args.backend!r}")
    example = None if args.example is None else _ModelFile(args.example)
    with progress("importing torch"):
        import delegraph_devkit as testing

        registry.get_backend(args.backend)
    _known(args.only, testing.CHECKS, args.operator)
    subject = testing.Subject(
        args.backend,
        options,
        testing.TOLERANCE if args.tolerance is None else args.tolerance,
        example,
        gate=testing.QUICK_GATE if args.quick else testing.GATE,
        seconds=args.seconds,
        operators=tuple(args.operator),
    )
    chosen = args.only or (["accepted_compiles", "numerics"] if args.operator else [])
    report = testing.run_checks(subject, chosen, lambda name: progress(f"checking {name}"))
    text, content = str(report), report.to_json()
    if args.verbose:
        text = f"{subject.sweep}\n\n{text}"
        content["programs"] = [asdict(o) for o in subject.sweep.outcomes]
    return Outcome(testing.SCHEMA, content, text, 0 if report.passed else 1)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < math.inf:
        raise ValueError
    return seconds


def _known(names: Iterable[str], checks: Iterable[str], operators: list[str]) -> None:
    unknown = [n for n in names if n not in checks]
    if unknown:
        raise UsageError("usage-invalid", f"there is no check {unknown[0]!r}; checks: {', '.join(checks)}")
    if operators:
        from ..opinfo import unknown as unknown_to

        for name in unknown_to(operators):
            raise UsageError("usage-invalid", f"torch's table of operators has no {name!r}", hint="such as add or relu")


class _ModelFile:
    """The example as MODEL names it; unlike a function of that file it can be sent to another process."""

    def __init__(self, text: str) -> None:
        model.split(text)
        self.text = text

    @property
    def source(self) -> str:
        """Python that makes it again."""
        return f"from delegraph.cli.model import load\n\nmodel, inputs, _ = load({self.text!r})\n"

    def __call__(self) -> tuple[Any, tuple[Any, ...]]:
        module, inputs, _ = model.load(self.text)
        return module, inputs or ()
