"""Compare several backends for one model: ``delegraph compare``."""

from __future__ import annotations

import argparse
import shutil
import sys

from delegraph import default_registry
from delegraph.command import (
    Outcome,
    add_compiler_flags,
    as_json,
    check_model,
    chosen_compiler,
    expect_places,
    output_path,
    parse_options,
    progress,
    read_model,
)
from delegraph.errors import UsageError
from delegraph.io.atomic_write import write_whole


class Compare:
    """``delegraph compare``."""

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
            help="in order of preference (default: all)",
        )
        add("--option", action="append", default=[], metavar="BACKEND.OPTION=VALUE")
        add_compiler_flags(parser)
        add(
            "--report",
            type=output_path,
            metavar="FILE",
            help="write the comparison to a .json or .txt file",
        )

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        file = check_model(args.model)
        backends = args.backend
        if not backends:
            backends = [b.name for b in default_registry().usable_backends()]
        options = parse_options(backends, args.option)
        expect_places(filter(None, [args.report]), filter(None, [file]))
        if args.report and args.report.suffix.lower() not in (".json", ".txt"):
            text = f"--report writes .json and .txt, not {args.report.name!r}"
            raise UsageError("usage-invalid", text)
        with progress(f"comparing {', '.join(backends)}"):
            from ..comparison import compare

            found = compare(
                **read_model(args.model).arguments(),
                backends=backends,
                options=options,
                compiler=chosen_compiler(args),
            )
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        outcome = Outcome("delegraph.compare/1", found.to_json(), found.text(width))
        if args.report:
            is_json = args.report.suffix.lower() == ".json"
            text = as_json(outcome) if is_json else str(found)
            write_whole(args.report, f"{text}\n".encode())
        return outcome
