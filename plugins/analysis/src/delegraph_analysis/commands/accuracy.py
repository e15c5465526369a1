"""Compare a lowered model with eager PyTorch: ``delegraph accuracy``.

By default it compares every operator with float64; with ``--data``, the outputs for
each sample.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delegraph.command import (
    Outcome,
    add_compiler_flags,
    check_model,
    chosen_compiler,
    expect_file,
    expect_places,
    output_path,
    parse_options,
    progress,
    read_inputs,
    read_model,
)
from delegraph.errors import InputError

from .over_data import add_data_flags, expect_no_data_flags, run_over_data

if TYPE_CHECKING:
    from delegraph import LoweredProgram


class AccuracyOfOperators:
    """``delegraph accuracy``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "model",
            metavar="MODEL",
            help=(
                "a .pt2 file, path.py[:function][@weights] (runs the file), or"
                " scheme:name"
            ),
        )
        add(
            "--backend",
            action="append",
            default=[],
            metavar="BACKEND",
            help="in order of preference (default: the only installed one)",
        )
        add("--option", action="append", default=[], metavar="BACKEND.OPTION=VALUE")
        add_compiler_flags(parser)
        add(
            "--input",
            action="append",
            default=[],
            type=Path,
            metavar="FILE.npz",
            help="compare with these inputs; may be repeated for further inputs",
        )
        ties = (
            "also accept outputs that eager returns with other rounding, or with equal"
            " elements in another order"
        )
        add("--ties", action="store_true", help=ties)
        add_data_flags(parser)
        add(
            "--report",
            action="append",
            default=[],
            type=output_path,
            metavar="FILE",
            help=(
                "write the report with the figures; the suffix, such as .html, selects"
                " the form; may be repeated"
            ),
        )

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        if args.data:
            return run_over_data(args)
        expect_no_data_flags(args)
        from delegraph.report import (
            LoweringResult,
            expect_report_formats,
            write_report,
        )

        read = [*filter(None, [check_model(args.model)]), *args.input]
        for path in args.input:
            expect_file(path)
        expect_places(args.report, read)
        expect_report_formats(args.report)
        options = parse_options(args.backend, args.option)
        with progress(f"lowering {args.model}"):
            from delegraph import lower

            from ..accuracy.operators import VerificationByOperator
            from ..accuracy.reference import verify_operators

            given = read_model(args.model)
            lowered = lower(
                **given.arguments(),
                backends=args.backend or None,
                options=options,
                compiler=chosen_compiler(args),
            )
        found = {}
        with progress("comparing every operator with eager"):
            for method in lowered.methods:
                several = []
                for inputs, kwargs in _calls(args.input, given, lowered, method):
                    verification = verify_operators(
                        lowered, *inputs, method=method, ties=args.ties, **kwargs
                    )
                    several.append(verification)
                found[method] = VerificationByOperator.worst_of(several)
        for path in args.report:
            write_report(LoweringResult(lowered.report, found, model=args.model), path)
        texts = []
        for method, figures in found.items():
            name = f"method {method}, " if len(found) > 1 else ""
            texts.append(f"{name}{figures}")
        content = {
            "methods": {method: figures.to_json() for method, figures in found.items()}
        }
        agrees = all(figures.agrees() for figures in found.values())
        code = 0 if agrees else 1
        return Outcome("delegraph.accuracy/1", content, "\n".join(texts), code)


def _calls(
    files: Sequence[Path], given: Any, lowered: LoweredProgram, method: str
) -> list[tuple[Any, Any]]:
    """Return (inputs, keyword inputs) of each call of a method.

    They are read from the files of ``--input``; without files, they are the example
    inputs of the model. Raises InputError if it has none.
    """
    example = (given.inputs[method], given.kwargs[method])
    if files:
        program = lowered.exported_program(method)
        return [read_inputs(path, method, program, example) for path in files]
    if given.inputs[method] is None:
        raise InputError(
            "input-invalid",
            f"method {method} has no example inputs to run it with",
            hint="export the program with example inputs, or pass --input FILE.npz",
        )
    return [example]
