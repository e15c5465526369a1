"""``delegraph profile``: where the time of a model's call goes, or of a file's, by
line, module and delegate.
"""

from __future__ import annotations

import argparse
import inspect
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

from .run import as_arguments

if TYPE_CHECKING:
    from ..profiling import ProgramProfile


class Profile:
    """``delegraph profile``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        what = (
            "a .pt2 file, or path.py[:function] (this runs the file), or a saved"
            " program such as model.pte"
        )
        add("model", metavar="MODEL|FILE", help=what)
        add(
            "--backend",
            action="append",
            default=[],
            metavar="BACKEND",
            help="in order of preference (default: one)",
        )
        add("--option", action="append", default=[], metavar="BACKEND.OPTION=VALUE")
        add_compiler_flags(parser)
        told = (
            "write the report with the times in the form of the suffix, such as .html;"
            " may be given several times"
        )
        add(
            "--report",
            action="append",
            default=[],
            type=output_path,
            metavar="FILE",
            help=told,
        )
        add(
            "--repeats",
            type=int,
            default=10,
            metavar="N",
            help="calls of each method, of which the median is shown",
        )
        add(
            "--method",
            metavar="NAME",
            help=(
                "of several: all of a model, and forward of a saved program, unless"
                " given"
            ),
        )
        given = "of a saved program: one for each input; random ones unless given"
        add(
            "--input",
            action="append",
            default=[],
            type=Path,
            metavar="FILE.npy",
            help=given,
        )

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        saved = _saved_program(args.model)
        found = _profile_model(args) if saved is None else _profile_file(saved, args)
        content = {"methods": [figures.to_json() for figures in found]}
        return Outcome("delegraph.profile/1", content, "\n".join(map(str, found)), 0)


def _saved_program(text: str) -> FileFormat | None:
    """The file of a program that was lowered and saved; None for a model, and for what
    is neither.
    """
    path = Path(text)
    if path.suffix in (".py", ".pt2") or not path.is_file():
        return None
    try:
        return FileFormat(path, default_registry())
    except FormatNotFound:
        return None


def _profile_model(args: argparse.Namespace) -> list[ProgramProfile]:
    """All methods of a model, which is lowered for that; writes the reports."""
    from delegraph.report import LoweringResult, expect_report_formats, write_report

    if args.input:
        raise UsageError(
            "usage-invalid",
            "--input is for a saved program; a model has example inputs",
        )
    expect_places(args.report, filter(None, [check_model(args.model)]))
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
                hint = "export the program with example inputs"
                raise InputError(
                    "input-invalid",
                    f"method {method} has no example inputs to call it with",
                    hint=hint,
                )
            found.append(
                profile_program(
                    lowered,
                    *inputs,
                    repeats=args.repeats,
                    method=method,
                    **kwargs or {},
                )
            )
    for path in args.report:
        write_report(
            LoweringResult(
                lowered.report, profiles={f.method: f for f in found}, model=args.model
            ),
            path,
        )
    return found


def _methods(known: Sequence[str], chosen: str | None) -> Sequence[str]:
    if chosen is None:
        return known
    if chosen not in known:
        text = f"there is no method {chosen!r}; methods: {', '.join(known)}"
        raise InputError("input-invalid", text, hint="choose one: --method NAME")
    return [chosen]


def _profile_file(file: FileFormat, args: argparse.Namespace) -> list[ProgramProfile]:
    """A method of a saved program: that of ``--method``, or the one that calls without
    a name take.
    """
    for name in ("backend", "option", "report"):
        if getattr(args, name):
            raise UsageError(
                "usage-invalid",
                f"--{name} is for a model; {args.model} is lowered already",
            )
    for path in args.input:
        expect_file(path)
    if not args.input and not file.defines("sample"):
        hint = "give an .npy file for each input: --input FILE.npy"
        raise UsageError(
            "usage-invalid",
            f"the format of {file.suffix} files has no sample inputs",
            hint=hint,
        )
    with progress(f"calling {args.model}"):
        from ..profiling import profile_file

        named = (
            {"method": args.method}
            if "method" in inspect.signature(file.kind.sample).parameters
            else {}
        )
        inputs: list[Any] = [read_array(path) for path in args.input] or file.sample(
            file.path, 0, **named
        )
        arguments = as_arguments(file, args.method, inputs)
        return [
            profile_file(file, *arguments, repeats=args.repeats, method=args.method)
        ]
