"""Write the table of operators that a backend accepts: ``delegraph coverage``."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

import delegraph
from delegraph.command import Outcome, natural_number, parse_options, progress, tell
from delegraph.io.atomic_write import write_whole

SCHEMA = "delegraph.coverage/1"


class Coverage:
    """``delegraph coverage``."""

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
            "-o",
            "--output",
            type=Path,
            metavar="FILE.md",
            help="write the table to this file, as Markdown",
        )
        parser.add_argument(
            "--operator",
            action="append",
            default=[],
            metavar="NAME",
            help="list only this operator; may be repeated",
        )
        text = "number of torch's samples (default 4000, nearly all)"
        parser.add_argument(
            "--samples", type=natural_number, default=4000, metavar="N", help=text
        )

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        options = parse_options([args.backend], args.option).get(args.backend, {})
        with progress(f"running the support check of {args.backend}"):
            from ..configured_backend import ConfiguredBackend
            from ..coverage import as_markdown, support_of
            from ..opinfo import require_operators

            # raise for unknown names before the long check
            delegraph.get_backend(args.backend)
            require_operators(args.operator)
            backend = ConfiguredBackend(
                args.backend, options, gate=args.samples, operators=tuple(args.operator)
            )
            backend.tell = lambda text: tell(f"  {text}")
            rows = support_of(backend)
        page = as_markdown(" ".join([args.backend, *args.option]), rows)
        if args.output is not None:
            write_whole(args.output, page.encode())
        text = f"wrote {args.output}" if args.output else page.rstrip("\n")
        content = {"backend": args.backend, "operators": [asdict(row) for row in rows]}
        return Outcome(SCHEMA, content, text, 0)
