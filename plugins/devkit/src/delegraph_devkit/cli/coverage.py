"""``delegraph coverage``: the table of operators that a backend takes."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

import delegraph
from delegraph.command import Outcome, natural_number, parse_options, progress, tell
from delegraph.errors import UsageError
from delegraph.io.atomic_write import write_whole

SCHEMA = "delegraph.coverage/1"


class Coverage:
    """``delegraph coverage``."""

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
            "-o",
            "--output",
            type=Path,
            metavar="FILE.md",
            help="write the table there, as Markdown",
        )
        parser.add_argument(
            "--operator",
            action="append",
            default=[],
            metavar="NAME",
            help="ask about this one alone",
        )
        text = (
            "ask about so many of torch's samples (default 4000, which are nearly all)"
        )
        parser.add_argument(
            "--samples", type=natural_number, default=4000, metavar="N", help=text
        )

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        options = parse_options([args.backend], args.option).get(args.backend, {})
        with progress(f"asking {args.backend}"):
            from ..configured_backend import ConfiguredBackend
            from ..coverage import as_markdown, support_of
            from ..opinfo import unknown

            delegraph.get_backend(args.backend)
            for name in unknown(args.operator):
                text = f"torch's table of operators has no {name!r}"
                raise UsageError("usage-invalid", text, hint="such as add or relu")
            backend = ConfiguredBackend(
                args.backend, options, gate=args.samples, operators=tuple(args.operator)
            )
            backend.tell = lambda text: tell(f"  {text}")
            rows = support_of(backend)
        page = as_markdown(" ".join([args.backend, *args.option]), rows)
        if args.output is not None:
            write_whole(args.output, page.encode())
        content = {"backend": args.backend, "operators": [asdict(row) for row in rows]}
        return Outcome(
            SCHEMA,
            content,
            f"wrote {args.output}" if args.output else page.rstrip("\n"),
            0,
        )
