"""Print the contents of a file by its format: ``delegraph inspect``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from delegraph import default_registry
from delegraph.command import Outcome, expect_file, expect_places, output_path, progress
from delegraph.errors import UsageError
from delegraph.host import FileFormat
from delegraph.io.atomic_write import write_whole
from delegraph.io.escape_for_terminal import LONGEST, printable

from ..summaries import summary_text


class Inspect:
    """``delegraph inspect``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("file", type=Path, metavar="FILE")
        add(
            "--summary",
            action="store_true",
            help="print one screen: kind, inputs, outputs and contents",
        )
        add(
            "--can-run",
            action="store_true",
            help="check whether its delegates can run; exit with 1 if one cannot",
        )
        add(
            "--device",
            metavar="NAME",
            help="with --can-run: the device, by the name that its runtime uses",
        )
        add(
            "--html",
            type=output_path,
            metavar="FILE",
            help="write a page with the graph",
        )
        add(
            "--verify",
            action="store_true",
            help="check the file with other installed tools; exit with 1 if one refuses",
        )

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        expect_file(args.file)
        if args.device is not None and not args.can_run:
            raise UsageError("usage-invalid", "--device needs --can-run")
        file_format = FileFormat(args.file, default_registry())
        expect_places(filter(None, [args.html]), [args.file])
        with progress(f"reading {args.file}"):
            content, shown = _inspect(file_format, args)
            answer = file_format.compatible(args.device) if args.can_run else None
        texts = list(filter(None, [shown, "" if answer is None else str(answer)]))
        if answer is not None:
            content["compatible"] = answer.to_json()
        if args.html:
            write_whole(args.html, file_format.page(args.file).encode())
            texts.append(f"wrote {args.html}")
        verdicts = file_format.verify(args.file) if args.verify else []
        if args.verify:
            content["verdicts"] = [verdict._asdict() for verdict in verdicts]
            texts += [
                _line_of(f"{_VERDICTS[v.accepted]} {v.judge}: {v.detail}")
                for v in verdicts
            ]
        refused = any(verdict.accepted is False for verdict in verdicts)
        refused = refused or (answer is not None and answer.verdict == "cannot")
        return Outcome("delegraph.inspect/1", content, "\n".join(texts), int(refused))


def _inspect(
    file_format: FileFormat, args: argparse.Namespace
) -> tuple[dict[str, Any], str]:
    """Return the contents of a file as data and as text.

    The data include the summary if the format has one.
    """
    content: dict[str, Any] = {"file": str(args.file)}
    text = ""
    if args.summary or (args.json and file_format.defines("summarize")):
        summary = file_format.summarize(args.file)
        content["summary"] = summary.to_json()
        text = f"{args.file.name}: {summary_text(summary)}"
    # with these flags, the contents are not printed
    if args.summary or args.can_run:
        return content, text
    inspection = file_format.inspect(args.file)
    return {**content, **inspection.to_json()}, str(inspection)


def _line_of(text: str) -> str:
    """Return a text as one line.

    A verdict may quote names of the file, with any characters and of any length.
    """
    lines = filter(None, map(str.strip, text.splitlines()))
    shown = printable("; ".join(lines))
    if len(shown) <= LONGEST:
        return shown
    return f"{shown[:LONGEST]}… ({len(shown)} characters)"


_VERDICTS = {True: "accepted by", False: "refused by", None: "not checked by"}
"""``accepted`` of a verdict -> its text."""
