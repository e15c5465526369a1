"""``delegraph profile``: where the time of a model's call goes, by line, module and delegate."""

from __future__ import annotations

import argparse

from delegraph.command import (
    Outcome,
    check_model,
    expect_places,
    output_path,
    parse_options,
    progress,
    read_model,
)
from delegraph.errors import InputError


class Profile:
    """``delegraph profile``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("model", metavar="MODEL", help="a .pt2 file, or path.py[:function] (this runs the file)")
        add("--backend", action="append", default=[], metavar="BACKEND", help="in order of preference (default: one)")
        add("--option", action="append", default=[], metavar="BACKEND.OPTION=VALUE")
        told = "write the report with the times in the form of the suffix, such as .html; may be given several times"
        add("--report", action="append", default=[], type=output_path, metavar="FILE", help=told)
        add("--repeats", type=int, default=10, metavar="N", help="calls of each method, of which the median is shown")

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        expect_places(args.report, filter(None, [check_model(args.model)]))
        options = parse_options(args.backend, args.option)
        with progress(f"lowering {args.model}"):
            from delegraph import lower
            from delegraph.reports import LoweringResult, write_report

            from ..profiling import profile_program

            given = read_model(args.model)
            lowered = lower(**given.arguments(), backends=args.backend or None, options=options)
        found = []
        with progress("calling it"):
            for method in lowered.methods:
                inputs, kwargs = given.inputs[method], given.kwargs[method]
                if inputs is None:
                    hint = "export the program with example inputs"
                    raise InputError(
                        "input-invalid", f"method {method} has no example inputs to call it with", hint=hint
                    )
                found.append(profile_program(lowered, *inputs, repeats=args.repeats, method=method, **kwargs or {}))
        for path in args.report:
            write_report(LoweringResult(lowered.report, profiles={f.method: f for f in found}, model=args.model), path)
        content = {"methods": [figures.to_json() for figures in found]}
        return Outcome("delegraph.profile/1", content, "\n".join(map(str, found)), 0)
