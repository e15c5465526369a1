"""What ``delegraph lower`` says of several MODELs: a table, and with ``--rows`` a line of JSON for each."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from delegraph.command import Outcome, as_json, check_model, expect_file, table
from delegraph.errors import InputError, UsageError, WriteError
from delegraph.io.atomic_write import write_whole

Row = dict[str, Any]


class Several:
    """The MODELs of one ``delegraph lower``, and what they are called."""

    def __init__(self, args: argparse.Namespace, names: Sequence[str]) -> None:
        """Raises UsageError where each would need something of its own: inputs, or a place for what is written."""
        self.args = args
        if args.rows and args.rows.exists():
            expect_file(args.rows)
        if args.input and len(args.model) > 1:
            raise UsageError("usage-invalid", "--input is for one MODEL", hint="lower each with its own inputs")
        if len(args.model) > 1:
            for flag, path in (("--output", args.output), *(("--report", path) for path in args.report)):
                if path is not None and "{}" not in path.name:
                    text = f"{flag} of several MODELs needs {{}} in its name, where that of the model comes"
                    hint = f"{flag} {path.with_name('{}' + ''.join(path.suffixes))}"
                    raise UsageError("usage-invalid", text, hint=hint)
        if len(set(names)) < len(names) and (args.output or args.report):
            text = f"two MODELs are called {next(n for n in names if names.count(n) > 1)!r}"
            hint = "what is written is named by function or file; give each once"
            raise UsageError("usage-invalid", text, hint=hint)

    def lower(self, backends: Sequence[str], options: Mapping[str, Any], lower_one: Callable[[str], Row]) -> Outcome:
        """The table of all; ``lower_one`` gives the row of a MODEL.

        Of a MODEL that is through, its row is kept and nothing else: the programs of all may not fit into memory.
        """
        args = self.args
        settings = {model: _settings(model, args, backends, options) for model in args.model}
        known = _kept_rows(args.rows, settings) if args.rows else {}
        rows = dict(known)
        for model in args.model:
            if model not in known:
                rows[model] = lower_one(model)
                if args.rows:
                    _keep_row(args.rows, rows[model], settings[model])
        return _outcome([rows[model] for model in args.model])


_NOT_ASKED = (
    "model",
    "backend",
    "host_only",
    "option",
    "no_fold_constants",
    "cache",
    "rows",
    "verbose",
    "json",
    "debug",
)
"""Arguments that a row does not depend on, or that it has under a name of its own; all others say what is asked."""


def _settings(
    model: str, args: argparse.Namespace, backends: Sequence[str], options: Mapping[str, Any]
) -> dict[str, Any]:
    """What the row of a MODEL depends on. A file that was written anew is another one."""
    file = check_model(model)
    state = None if file is None else file.stat()
    given = {flag: value for flag, value in vars(args).items() if flag not in _NOT_ASKED and not callable(value)}
    return {
        "backends": backends,
        "options": options,
        "fold_constants": not args.no_fold_constants,
        # --max-delegates 0 is given, though 0 equals the False of a flag that was not
        "asked": {flag: str(v) for flag, v in given.items() if v is not False and v not in (None, [])},
        "file": state and {"bytes": state.st_size, "modified": state.st_mtime_ns},
    }


def _outcome(listed: Sequence[Mapping[str, Any]]) -> Outcome:
    """A table with a row for each MODEL; 1 if one of them failed."""
    head = ["MODEL", "DELEGATED", "DELEGATES", "BYTES", "ERROR OF VALUES", "SECONDS", ""]
    failed = sum(row["error"] is not None for row in listed)
    content = {"models": listed, "failed": failed}
    return Outcome("delegraph.lower-many/1", content, table([head, *map(_cells, listed)]), int(failed > 0))


def _cells(row: Mapping[str, Any]) -> list[str]:
    report, error = row["report"], row["error"]
    shown = ["-", "-", "-"]
    if report is not None:
        done, sizes = report["delegated_operators"], [d["bytes"] for d in report["delegates"]]
        shown = [f"{done} of {done + report['host_operators']}", str(len(sizes)), str(sum(sizes))]
    why = "" if error is None else f"{error['code']}: {error['message'].splitlines()[0]}"
    return [row["model"], *shown, _worst(row["verification"]), f"{row['seconds']:.1f}", why]


def _worst(figures: Mapping[str, Any] | None) -> str:
    """The largest error of all methods, of which each has its figures if there are several."""
    if not figures:
        return "-"
    methods = [figures] if "outputs" in figures else list(figures.values())
    errors = [method["relative_error"] for method in methods]
    return "infinite" if None in errors else f"{max(errors):.2g}"


_ROW = '{"schema": "delegraph.lower-row/1"'


def _kept_rows(path: Path, settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Row]:
    """Model -> its row from an earlier call with the same settings. Raises InputError for another file.

    A last line that is not whole, since the process was ended while it wrote, is taken out of the file.
    """
    if not path.exists():
        return {}
    rows: dict[str, Row] = {}
    wanted = json.loads(json.dumps(settings, default=str))
    try:
        *lines, torn = path.read_text(encoding="utf-8").split("\n")
        if torn[: len(_ROW)] != _ROW[: len(torn)]:
            raise ValueError("its last line does not end")
        for row in map(json.loads, lines):
            if row["settings"] == wanted.get(row["model"]):
                rows[row["model"]] = row
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as e:
        raise InputError("input-invalid", f"{path} is no file of rows that --rows wrote: {e}") from e
    if torn:
        write_whole(path, "".join(f"{line}\n" for line in lines).encode())
    return rows


def _keep_row(path: Path, row: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Add a line, at once: if the next MODEL ends the process, this one is not lost."""
    content = json.loads(as_json(Outcome("delegraph.lower-row/1", {**row, "settings": settings}, "")))
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(content) + "\n")
    except OSError as e:
        raise WriteError("write-failed", f"cannot add to {path}: {e.strerror or e}") from e
