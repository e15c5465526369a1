"""``delegraph matrix``: models x backends x quantizations.

``diff``, ``show`` and ``join`` read the stores that it wrote.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delegraph.command import (
    Outcome,
    as_json,
    expect_file,
    expect_places,
    natural_number,
    output_path,
    parse_options,
    progress,
)
from delegraph.errors import DelegraphError, UsageError
from delegraph.io.atomic_write import write_whole

if TYPE_CHECKING:
    from ..matrix.cells import Cell
    from ..matrix.description import Matrix, Settings
    from ..matrix.store import Store

STORE = Path("matrix-store")
"""The store without ``--store``, in the working directory."""
SCHEMA = "delegraph.matrix/1"
DIFF_SCHEMA = "delegraph.matrix-diff/1"


class MatrixCommand:
    """``delegraph matrix``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "what",
            metavar="MODEL",
            nargs="+",
            help=(
                "a file MATRIX.toml, or MODELs; or diff OLD NEW, show STORE..., join"
                " INTO STORE..."
            ),
        )
        _add_cells(parser.add_argument_group("selection of cells").add_argument)
        _add_settings(parser.add_argument_group("settings of each cell").add_argument)
        _add_work(parser.add_argument_group("executor and outputs").add_argument)
        _add_diff(parser.add_argument_group("matrix diff").add_argument)

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        word, *others = args.what
        works: Mapping[str, Callable[[argparse.Namespace, list[str]], Outcome]]
        works = {"diff": _diff, "show": _show, "join": _join}
        if word in works and not Path(word).is_file():
            return works[word](args, others)
        return _run(args)


def _add_cells(add: Callable[..., Any]) -> None:
    many = (
        "a cell for each: a name, or several joined by + in order of preference"
        " (default: all)"
    )
    add("--backends", nargs="+", default=[], metavar="BACKEND", help=many)
    add(
        "--host-only",
        action="store_true",
        help="also a cell for no backend: everything stays on the host",
    )
    add("--option", action="append", default=[], metavar="BACKEND.OPTION=VALUE")
    add(
        "--quantize",
        nargs="+",
        default=[],
        metavar="TYPE",
        help="float, int8, or both (default: float)",
    )
    quantizer = (
        "of int8: a backend that has one, or path.py:function (default: the first of"
        " the cell's)"
    )
    add("--quantizer", metavar="NAME", help=quantizer)
    calibration = (
        "for int8 of one MODEL, as for lower --quantize (default: its example inputs)"
    )
    add("--calibration", metavar="FILE.npz", help=calibration)
    add(
        "--shard",
        metavar="I/N",
        help=(
            "only these, for one of N machines; matrix join puts their stores together"
        ),
    )


def _add_settings(add: Callable[..., Any]) -> None:
    add(
        "--runs",
        type=natural_number,
        metavar="N",
        help="calls of which the latency is the median (default: 5)",
    )
    add(
        "--threads",
        type=natural_number,
        metavar="N",
        help="threads of PyTorch in a cell (default: 1)",
    )
    files = "formats of which files are written (default: .pte)"
    add("--files", nargs="*", metavar="SUFFIX", help=files)
    add("--no-files", action="store_true", help="do not keep files, only their sizes")
    add("--no-verify", action="store_true", help="do not compare with eager PyTorch")
    add(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help="stop a cell after so long (default: 600)",
    )
    limit = "memory that a cell may take (default: 80 %% of the machine's)"
    add("--memory-limit", type=float, metavar="MB", help=limit)
    add("--cache", metavar="DIR", help="keep compiled partitions there, as for lower")
    add(
        "--tolerance",
        type=float,
        metavar="RATIO",
        help="difference from eager that is accepted, as for lower",
    )
    add(
        "--require-agreement",
        action="store_true",
        help="a cell fails if it differs from eager",
    )
    add(
        "--require-full",
        action="store_true",
        help="a cell fails if an operator is left to the host",
    )
    add(
        "--min-delegated",
        type=float,
        metavar="SHARE",
        help="a cell fails if fewer operators are delegated",
    )
    add(
        "--max-delegates",
        type=natural_number,
        metavar="N",
        help="a cell fails if there are more delegates",
    )


def _add_work(add: Callable[..., Any]) -> None:
    add(
        "--store",
        type=Path,
        default=STORE,
        metavar="DIR",
        help=f"where rows and files are kept (default: {STORE})",
    )
    from ..matrix.executors import FORMS

    add(
        "--executor",
        default="serial",
        metavar="NAME",
        help=f"{FORMS} (default: serial)",
    )
    add(
        "--failed-again",
        action="store_true",
        help="also do cells again that have a row and failed",
    )
    add(
        "--exit-zero",
        action="store_true",
        help="failed cells are no failure of the command",
    )
    add(
        "--list",
        action="store_true",
        help="say which cells there are and which have a row, and do none",
    )
    form = (
        "also write a table: .md, .csv, .html, .json, or .junit.xml; may be given"
        " several times"
    )
    add(
        "--report",
        action="append",
        default=[],
        type=output_path,
        metavar="FILE",
        help=form,
    )
    add(
        "--no-times",
        action="store_true",
        help="leave figures out of .md that change from run to run, such as times",
    )
    add(
        "--refusals",
        action="store_true",
        help="print all refused operators, not only the most frequent ones",
    )


def _add_diff(add: Callable[..., Any]) -> None:
    from ..matrix.changes import ALWAYS, GATES

    kinds = (
        f"fail if one of these became worse: {', '.join(GATES)}, or none (default:"
        f" {' '.join(ALWAYS)})"
    )
    add("--gate", nargs="+", choices=[*GATES, "none"], metavar="KIND", help=kinds)
    add(
        "--noise",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="the change of a latency that counts as none (default: 0.1)",
    )


# --- doing cells ----------------------------------------------------------------------


def _run(args: argparse.Namespace) -> Outcome:
    """Do the cells that have no row, after a check of all arguments."""
    from ..matrix import cells, executors, schedule
    from ..matrix.store import Store

    matrix = _matrix(args)
    _expect_reports(args.report)
    listed = cells.cells_of(matrix)
    if args.shard:
        listed = cells.shard(listed, args.shard)
    store = Store(args.store)
    if args.list:
        return _list(listed, store)
    if not hasattr(os, "fork") or not hasattr(os, "pidfd_open"):
        text = "cells need fork and pidfd_open, which this system does not have"
        hint = (
            "run the matrix on Linux; delegraph matrix show and diff read its store on"
            " any system"
        )
        raise DelegraphError("matrix/no-forks", text, hint=hint)
    store.create()
    text = f"{_count(listed, 'cell')} of {_count(matrix.models, 'model')}"
    with (
        executors.engine_of(
            args.executor, store.folder, matrix.settings.time_limit
        ) as engine,
        progress(text),
    ):
        rows = schedule.run_cells(listed, store, engine, args.failed_again)
    return _outcome(args, rows, len(listed), store)


def _count(listed: Sequence[Any], noun: str) -> str:
    return f"{len(listed)} {noun}{'' if len(listed) == 1 else 's'}"


def _matrix(args: argparse.Namespace) -> Matrix:
    """Return the matrix that the command line describes: by a TOML file, or by flags.

    Settings on the command line replace those of the file. Raises UsageError for a flag
    that selects cells, which the file does.
    """
    from ..matrix import description

    given = _settings(args)
    if len(args.what) > 1 or not args.what[0].endswith(".toml"):
        return _from_arguments(args, _checked_settings(given))
    for name in _CELL_FLAGS:
        if getattr(args, name):
            raise UsageError(
                "usage-invalid",
                f"--{name.replace('_', '-')} does not go with a MATRIX.toml;"
                " write the setting into that file",
            )
    path = Path(args.what[0])
    expect_file(path)
    matrix = description.read_matrix(path)
    settings = asdict(matrix.settings)
    settings["files"] = list(matrix.settings.files)
    return replace(matrix, settings=_checked_settings({**settings, **given}))


_CELL_FLAGS = (
    "backends",
    "host_only",
    "option",
    "quantize",
    "quantizer",
    "calibration",
)
"""Flags that a MATRIX.toml replaces."""


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that the command line gives."""
    names = (
        "runs",
        "threads",
        "files",
        "time_limit",
        "memory_limit",
        "cache",
        "tolerance",
        "min_delegated",
        "max_delegates",
    )
    given = {name: getattr(args, name) for name in names}
    for flag in ("require_agreement", "require_full"):
        # without the flag, the setting of the file remains
        if getattr(args, flag):
            given[flag] = True
    if args.no_verify:
        given["verify"] = False
    if args.no_files:
        given["keep_files"] = False
    if args.cache:
        given["cache"] = os.path.abspath(args.cache)
    return {name: value for name, value in given.items() if value is not None}


def _checked_settings(given: Mapping[str, Any]) -> Settings:
    """Return the settings. Raises UsageError for one that does not fit."""
    from ..matrix.description import Wrong, settings_of

    try:
        return settings_of(given)
    except Wrong as e:
        raise UsageError("usage-invalid", str(e)) from None


def _from_arguments(args: argparse.Namespace, settings: Settings) -> Matrix:
    """Return the matrix of the MODELs and flags of the command line."""
    from delegraph import default_registry

    from ..matrix import description as d

    folder = Path.cwd()
    texts: list[str] = []
    for entry in args.what:
        texts += d.expand(entry, folder)
    if args.calibration and len(texts) > 1:
        raise UsageError(
            "usage-invalid",
            f"--calibration works with one MODEL, not with {len(texts)}",
            hint="write a MATRIX.toml with a calibration for each model",
        )
    models = tuple(d.Model(text, d.name_of(text), args.calibration) for text in texts)

    backends = args.backends or []
    if not backends and not args.host_only:
        backends = [info.name for info in default_registry().usable_backends()]
    groups: list[list[str]] = [name.split("+") for name in backends]
    names = list(dict.fromkeys(itertools.chain.from_iterable(groups)))
    if args.host_only:
        groups.append([])
    options = parse_options(names, args.option)

    kinds = args.quantize or [d.FLOAT]
    for kind in kinds:
        if kind not in (d.FLOAT, "int8"):
            raise UsageError(
                "usage-invalid", f"--quantize accepts float and int8, not {kind!r}"
            )
    quantizations = tuple(
        d.Quantization(kind, args.quantizer if kind != d.FLOAT else None)
        for kind in kinds
    )
    targets = tuple(d.target_of(group, options) for group in groups)
    matrix = d.Matrix(models, targets, quantizations, settings, folder)
    return d.checked(matrix, lambda why: UsageError("usage-invalid", why))


def _list(cells: Sequence[Cell], store: Store) -> Outcome:
    """List the cells, and mark those that have a row."""
    from ..matrix import schedule

    unfinished = schedule.missing(cells, store) if store.exists() else cells
    missing = {cell.identity for cell in unfinished}
    lines = []
    listed = []
    for cell in cells:
        is_missing = cell.identity in missing
        lines.append(f"{'missing' if is_missing else 'there':8} {cell}")
        listed.append(
            {
                "cell": cell.identity,
                "name": cell.model.name,
                "target": cell.target.name,
                "quantize": cell.quantization.name,
                "row": not is_missing,
            }
        )
    lines.append(f"{_count(cells, 'cell')}, {len(missing)} without a row")
    content = {"cells": listed, "missing": len(missing)}
    return Outcome("delegraph.matrix-list/1", content, "\n".join(lines))


_REFUSALS = 5
"""Printed refusals, unless --refusals prints all."""


def _outcome(
    args: argparse.Namespace,
    rows: Sequence[Mapping[str, Any]],
    total: int,
    store: Store | None,
) -> Outcome:
    """Write the reports and the index of the store, and return the printed tables.

    ``total``: the number of cells. ``store``: None for rows from a file without one. The
    exit code is 1 if a cell failed or has no row.
    """
    from ..matrix import refusals, tables
    from ..matrix.rows import latest

    written = list(args.report)
    if store is not None:
        index = store.folder / "index.html"
        written.append(index)
    failed = sum(row["error"] is not None for row in rows)
    content = {
        "store": None if store is None else str(store.folder),
        "cells": total,
        "failed": failed,
        "rows": list(rows),
        "refusals": [refusal.to_json() for refusal in refusals.refusals_of(rows)],
        "reports": [str(path) for path in written],
    }
    for path in args.report:
        times = not args.no_times
        write_whole(path, _as_file(path, content, store, times=times))
    if store is not None:
        # the index has all rows of the store
        all_rows = {"rows": latest(store.rows())}
        write_whole(index, _as_file(index, all_rows, store))

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    parts = [tables.terminal_table(rows, width), tables.summary(rows, total)]
    refused = refusals.refusals_text(rows, None if args.refusals else _REFUSALS)
    if refused:
        parts.append(f"left to hosts:\n{refused}")
    if written:
        parts.append(f"wrote {', '.join(map(str, written))}")
    is_complete = failed == 0 and len(rows) >= total
    code = 0 if is_complete or args.exit_zero else 1
    return Outcome(SCHEMA, content, "\n".join(parts), code)


_FORMS = (".md", ".csv", ".html", ".htm", ".json", ".junit.xml")
"""Suffixes of ``--report``."""


def _expect_reports(paths: Sequence[Path]) -> None:
    """Raise UsageError for a report that cannot be written."""
    expect_places(paths, [])
    for path in paths:
        if not path.name.lower().endswith(_FORMS):
            forms = ", ".join(_FORMS)
            raise UsageError(
                "usage-invalid", f"--report writes {forms}, not {path.name!r}"
            )


def _as_file(
    path: Path, content: dict[str, Any], store: Store | None, times: bool = True
) -> bytes:
    """Return the content of a report in the form of its suffix."""
    from ..matrix import changes, page, tables

    name = path.name.lower()
    rows = content["rows"]
    if name.endswith(".junit.xml"):
        return changes.junit_of_rows(rows)
    if name.endswith(".csv"):
        return tables.comma_separated(rows).encode()
    if name.endswith(".json"):
        return f"{as_json(Outcome(SCHEMA, content, ''))}\n".encode()
    if name.endswith(".md"):
        return tables.markdown(rows, times=times).encode()
    # links lead from the page to files of the store
    place = store.folder if store is not None else path.parent
    relative = os.path.relpath(place.resolve(), path.resolve().parent)
    prefix = "" if relative == "." else f"{relative}/"
    return page.page(rows, "Matrix", prefix).encode()


# --- reading stores -------------------------------------------------------------------


def _show(args: argparse.Namespace, stores: list[str]) -> Outcome:
    """Print and write the tables of one store, or of a file of rows."""
    from ..matrix.rows import latest
    from ..matrix.store import Store, read_rows

    if len(stores) != 1:
        raise UsageError(
            "usage-invalid",
            "delegraph matrix show STORE takes one",
            hint="matrix join joins several",
        )
    _expect_reports(args.report)
    path = Path(stores[0])
    rows = latest(read_rows(path))
    args.exit_zero = True
    return _outcome(args, rows, len(rows), Store(path) if path.is_dir() else None)


def _join(args: argparse.Namespace, stores: list[str]) -> Outcome:
    """Put the rows and files of several stores into the first."""
    from ..matrix.rows import latest
    from ..matrix.store import Store

    if len(stores) < 2:
        raise UsageError(
            "usage-invalid",
            "delegraph matrix join INTO STORE... takes the new store, and the stores to"
            " join",
        )
    _expect_reports(args.report)
    into = Store(Path(stores[0]))
    into.join(Store(Path(name)) for name in stores[1:])
    rows = latest(into.rows())
    args.exit_zero = True
    return _outcome(args, rows, len(rows), into)


def _diff(args: argparse.Namespace, stores: list[str]) -> Outcome:
    """Compare two stores. The exit code is 1 if a gated figure became worse."""
    from ..matrix import changes
    from ..matrix.rows import latest
    from ..matrix.store import read_rows

    if len(stores) != 2:
        raise UsageError(
            "usage-invalid",
            f"delegraph matrix diff takes two stores, OLD and NEW, not {len(stores)}",
        )
    if not args.noise > 0:
        raise UsageError(
            "usage-invalid",
            f"--noise must be a fraction above 0, such as 0.05, not {args.noise}",
        )
    expect_places(args.report, [])
    for path in args.report:
        if not path.name.lower().endswith((".junit.xml", ".json")):
            raise UsageError(
                "usage-invalid",
                f"--report of a diff writes .junit.xml or .json, not {path.name!r}",
            )
    kinds: Sequence[str] = changes.ALWAYS
    if args.gate is not None:
        kinds = [kind for kind in args.gate if kind != "none"]
    before = latest(read_rows(Path(stores[0])))
    after = latest(read_rows(Path(stores[1])))
    found = changes.changes(before, after, args.noise)
    failing = changes.gate(found, kinds)
    content = {
        "changes": [changes.to_json(change) for change in found],
        "failing": [changes.to_json(change) for change in failing],
        "gates": list(kinds),
        "other_machines": changes.other_machines(before, after),
        "busy": changes.busy(before, after),
    }
    outcome = Outcome(
        DIFF_SCHEMA,
        content,
        _diff_text(before, after, found, failing),
        int(bool(failing)),
    )
    for path in args.report:
        if path.name.lower().endswith(".junit.xml"):
            write_whole(path, changes.junit(after, found, kinds))
        else:
            write_whole(path, f"{as_json(outcome)}\n".encode())
    return outcome


def _diff_text(
    before: Sequence[Any],
    after: Sequence[Any],
    found: Sequence[Any],
    failing: Sequence[Any],
) -> str:
    """Return the printed changes, and the rows that were not compared."""
    from ..matrix import changes

    lines = [str(change) for change in found] or ["nothing became better or worse"]
    overall = changes.overall(before, after)
    if overall:
        lines.append(overall)
    other = changes.other_machines(before, after)
    if other:
        lines.append(
            f"times of {other} cells are not compared: they are of another machine"
        )
    busy = changes.busy(before, after)
    if busy:
        lines.append(
            f"latencies of {busy} cells are not compared: their machine was too busy"
            " with other things"
        )
    if failing:
        lines.append(f"{len(failing)} of these fail the gates")
    return "\n".join(lines)
