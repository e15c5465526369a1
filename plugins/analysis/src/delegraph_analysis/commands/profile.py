"""Measure where the time of a call goes: ``delegraph profile``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delegraph import default_registry
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
    read_array,
    read_model,
)
from delegraph.errors import FormatNotFound, InputError, UsageError
from delegraph.host import FileFormat
from delegraph.io.atomic_write import write_whole

from .run import as_arguments, sample_inputs

if TYPE_CHECKING:
    from ..profiling import ProgramProfile


class Profile:
    """``delegraph profile``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        text = (
            "a .pt2 file, or path.py[:function] (this runs the file), or a saved"
            " program such as model.pte"
        )
        add("model", metavar="MODEL|FILE", help=text)
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
            "--report",
            action="append",
            default=[],
            type=output_path,
            metavar="FILE",
            help=(
                "write the report with the times; the suffix, such as .html, selects"
                " the form; may be repeated"
            ),
        )
        add(
            "-o",
            "--output",
            type=Path,
            metavar="FILE.json",
            help="write the median call of each method as a trace for Perfetto or Chrome",
        )
        add(
            "--repeats",
            type=int,
            default=10,
            metavar="N",
            help="number of calls of each method; the median is shown (default 10)",
        )
        add(
            "--method",
            metavar="NAME",
            help=(
                "one method (default: all methods of a model, forward of a saved"
                " program)"
            ),
        )
        add(
            "--input",
            action="append",
            default=[],
            type=Path,
            metavar="FILE.npy",
            help=(
                "an input of a saved program; repeat it for each input (default:"
                " random inputs)"
            ),
        )

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        if args.output is not None and args.output.suffix != ".json":
            raise UsageError(
                "usage-invalid",
                f"a trace is JSON: {args.output} must have the suffix .json",
                hint="to write a report, use --report",
            )
        saved = _saved_program(args.model)
        found = _profile_model(args) if saved is None else _profile_file(saved, args)
        if args.output is not None:
            from ..trace import perfetto_trace

            write_whole(args.output, json.dumps(perfetto_trace(found)).encode())
        content = {"methods": [figures.to_json() for figures in found]}
        return Outcome("delegraph.profile/1", content, "\n".join(map(str, found)), 0)


def _saved_program(text: str) -> FileFormat | None:
    """Return the file of a saved program; None for any other text."""
    path = Path(text)
    if path.suffix in (".py", ".pt2") or not path.is_file():
        return None
    try:
        return FileFormat(path, default_registry())
    except FormatNotFound:
        return None


def _written(args: argparse.Namespace) -> list[Path]:
    """Return the files that the command writes."""
    files = list(args.report)
    if args.output is not None:
        files.append(args.output)
    return files


def _profile_model(args: argparse.Namespace) -> list[ProgramProfile]:
    """Lower a model, profile its methods, and write the reports."""
    from delegraph.report import LoweringResult, expect_report_formats, write_report

    if args.input:
        raise UsageError(
            "usage-invalid",
            "--input is for a saved program; a model has example inputs",
        )
    expect_places(_written(args), filter(None, [check_model(args.model)]))
    expect_report_formats(args.report)
    options = parse_options(args.backend, args.option)
    with progress(f"lowering {args.model}"):
        from delegraph import lower

        from ..profiling import profile_program

        given = read_model(args.model)
        lowered = lower(
            **given.arguments(),
            backends=args.backend or None,
            options=options,
            compiler=chosen_compiler(args),
        )
    found = []
    with progress("calling it"):
        for method in _methods(lowered.methods, args.method):
            inputs = given.inputs[method]
            kwargs = given.kwargs[method]
            if inputs is None:
                raise InputError(
                    "input-invalid",
                    f"method {method} has no example inputs to call it with",
                    hint="export the program with example inputs",
                )
            profile = profile_program(
                lowered, *inputs, repeats=args.repeats, method=method, **kwargs or {}
            )
            found.append(profile)
    profiles = {profile.method: profile for profile in found}
    result = LoweringResult(lowered.report, profiles=profiles, model=args.model)
    for path in args.report:
        write_report(result, path)
    return found


def _methods(known: Sequence[str], chosen: str | None) -> Sequence[str]:
    """Return the chosen method, or all. Raises InputError for an unknown one."""
    if chosen is None:
        return known
    if chosen not in known:
        text = f"there is no method {chosen!r}; methods: {', '.join(known)}"
        raise InputError("input-invalid", text, hint="choose one with --method NAME")
    return [chosen]


def _profile_file(file: FileFormat, args: argparse.Namespace) -> list[ProgramProfile]:
    """Profile the method ``--method`` of a saved program, or its default method."""
    for name in ("backend", "option", "report"):
        if getattr(args, name):
            raise UsageError(
                "usage-invalid",
                f"--{name} is for a model; {args.model} is lowered already",
            )
    for path in args.input:
        expect_file(path)
    expect_places(_written(args), [file.path, *args.input])
    if not args.input and not file.defines("sample"):
        raise UsageError(
            "usage-invalid",
            f"the format of {file.suffix} files has no sample inputs",
            hint="pass --input FILE.npy for each input",
        )
    with progress(f"calling {args.model}"):
        from ..profiling import profile_file

        inputs: list[Any] = [read_array(path) for path in args.input]
        if not inputs:
            inputs = sample_inputs(file, 0, args.method)
        arguments = as_arguments(file, args.method, inputs)
        return [
            profile_file(file, *arguments, repeats=args.repeats, method=args.method)
        ]
