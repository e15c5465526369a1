"""Write rows as tables: for a terminal, in Markdown, and as CSV."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from delegraph.io.escape_for_terminal import printable, table

from .refusals import refusals_of
from .rows import agrees, has_only_non_finite, key_of, share, status, worst_error

Value = str | float | int | None


@dataclass(frozen=True)
class Column:
    """A column: its ``value`` in a row, and the text that ``shown`` makes of it.

    On a narrow terminal, columns with the highest ``rank`` are left out first; those of
    rank 0 never. ``title`` explains the column on a page.
    """

    head: str
    value: Callable[[Mapping[str, Any]], Value]
    rank: int = 0
    shown: Callable[[Any], str] = str
    title: str = ""


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def percent(value: float) -> str:
    """Format a share. Only 1 is 100%, and only 0 is 0%."""
    shown = f"{value:.0%}"
    if shown == "100%" and value < 1:
        return f"{min(value, 0.999):.1%}"
    if shown == "0%" and value > 0:
        return f"{max(value, 0.001):.1%}"
    return shown


def milliseconds(row: Mapping[str, Any], name: str) -> float | None:
    """Return the median of the calls of ``latency`` or ``eager``."""
    timed = row["measured"].get(name)
    if not timed or not timed["seconds"]:
        return None
    median: float = statistics.median(timed["seconds"])
    return 1000 * median


def file_bytes(row: Mapping[str, Any]) -> int | None:
    """Return the size of the file in the first format that can hold the program."""
    for entry in row["files"]:
        size: int | None = entry["bytes"]
        if size is not None:
            return size
    return None


def peak_bytes(row: Mapping[str, Any]) -> int | None:
    """Return the peak of the resident memory of the cell's process."""
    found: int | None = row["measured"].get("peak_bytes")
    return found


def _megabytes(value: int | None) -> float | None:
    return None if value is None else value / 1e6


def why(row: Mapping[str, Any]) -> str:
    """Return the reason why a cell failed, did not run, or has no finite outputs.

    Returns "" for any other row.
    """
    error = row["error"]
    if error is None and row["not_run"] is None and has_only_non_finite(row):
        return "no finite output: no number was compared"
    if error is None:
        return (row["not_run"] or "").partition("\n")[0]
    stage = f" in {row['stage']}" if row["stage"] else ""
    return f"{error['code']}{stage}: {error['message']}".partition("\n")[0]


COLUMNS = (
    Column("model", lambda row: row["name"]),
    Column("backends", lambda row: row["target"]),
    Column("type", lambda row: row["quantize"]),
    Column("status", status, 0, str, "failed, differs from eager, not run here, or ok"),
    Column(
        "delegated", share, 1, percent, "share of the operators that are in delegates"
    ),
    Column(
        "operators", lambda row: row["operators"], 9, str, "operators of the program"
    ),
    Column("delegates", lambda row: row["delegates"], 5),
    Column(
        "error",
        worst_error,
        3,
        lambda v: f"{v:.1e}",
        "largest error, relative to eager's largest value",
    ),
    Column(
        "ms",
        lambda row: milliseconds(row, "latency"),
        2,
        _digits,
        "median of a call of each method",
    ),
    Column(
        "eager ms",
        lambda row: milliseconds(row, "eager"),
        6,
        _digits,
        "the same in eager PyTorch, in turns",
    ),
    Column(
        "file MB",
        lambda row: _megabytes(file_bytes(row)),
        4,
        _digits,
        "size of the program's file",
    ),
    Column(
        "lower s",
        lambda row: row["measured"]["seconds"].get("lower"),
        7,
        _digits,
        "lowering, without the export",
    ),
    Column(
        "peak MB",
        lambda row: _megabytes(peak_bytes(row)),
        8,
        _digits,
        "peak memory of the cell's process",
    ),
    Column("why", why, 10),
)
_MISSING = "-"
_MEASURED = ("ms", "eager ms", "lower s", "peak MB")
"""Columns that change from run to run."""


def cells(row: Mapping[str, Any], columns: Sequence[Column] = COLUMNS) -> list[str]:
    """Return a row as texts."""
    return [text_of(column, row) for column in columns]


def text_of(column: Column, row: Mapping[str, Any]) -> str:
    """Return the text of a row in one column."""
    value = column.value(row)
    return _MISSING if value is None else column.shown(value)


def terminal_table(rows: Sequence[Mapping[str, Any]], width: int | None = None) -> str:
    """Return rows as text.

    If it is wider than ``width``, columns are left out, then texts are cut. If the
    reasons have no room in their column, they are listed below.
    """
    columns = [
        column for column in COLUMNS if column.head != "why" or any(map(why, rows))
    ]
    while True:
        shown = [
            [column.head.upper() for column in columns],
            *(cells(row, columns) for row in rows),
        ]
        text = table(shown)
        wide = max(map(len, text.split("\n")))
        if width is None or wide <= width:
            break
        if columns[-1].head == "why":
            room = width - (wide - max(len(printable(row[-1])) for row in shown))
            if room >= _READABLE:  # the page has the complete text
                for row in shown:
                    row[-1] = _cut(printable(row[-1]), room)
                return table(shown)
        column = max(columns, key=lambda c: c.rank)
        if column.rank == 0:  # no column may be left out
            room = max(4, (width - 2 * (len(columns) - 1)) // len(columns))
            cut_rows = []
            for row in shown:
                cut_rows.append([_cut(printable(cell), room) for cell in row])
            text = table(cut_rows)
            break
        columns.remove(column)
    lines = text.split("\n")
    if columns[-1].head != "why":
        reasons = dict.fromkeys(
            f"{status(row)}: {why(row)}" for row in rows if why(row)
        )
        lines += map(printable, reasons)
    if width is not None:
        lines = [_cut(line, width) for line in lines]
    return "\n".join(lines)


_READABLE = 16
"""The fewest characters of a text in the last column."""


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: max(0, length - 1)] + "…"


def summary(rows: Sequence[Mapping[str, Any]], total: int) -> str:
    """Return a line that counts the cells by status: ``3 cells: 2 ok, 1 failed``."""
    listed = [status(row) for row in rows]
    counts = [
        f"{listed.count(name)} {name}"
        for name in ("ok", "not run", "differs", "failed")
        if name in listed
    ]
    if total > len(rows):
        counts.append(f"{total - len(rows)} without a row")
    cells = "1 cell" if total == 1 else f"{total} cells"
    return f"{cells}: {', '.join(counts) or 'none'}"


def by_model(
    rows: Sequence[Mapping[str, Any]], times: bool = True
) -> tuple[list[str], list[list[str]]]:
    """Return a table with a row for each model and quantization, and a column for each
    target.
    """
    found = {key_of(row): row for row in rows}
    targets = list(dict.fromkeys(row["target"] for row in rows))
    listed = list(dict.fromkeys((name, kind) for name, _, kind in found))
    body = []
    for name, kind in listed:
        cells = [in_short(found.get((name, t, kind)), times) for t in targets]
        body.append([name, kind, *cells])
    return ["model", "type", *targets], body


def in_short(row: Mapping[str, Any] | None, times: bool = True) -> str:
    """Return a row in one cell: ``100 %, 2e-06, 3.1 ms``."""
    if row is None:
        return ""
    if row["error"] is not None and row["operators"] is None:
        return f"failed: {row['error']['code']}"
    parts = [percent(share(row) or 0.0)]
    error = worst_error(row)
    if error is not None:
        parts.append("equal" if error == 0 else f"{error:.0e}")
    if agrees(row) is False:
        parts.append("differs")
    if has_only_non_finite(row):
        parts.append("no finite output")
    time = milliseconds(row, "latency") if times else None
    if time is not None:
        parts.append(f"{_digits(time)} ms")
    if row["not_run"]:
        parts.append("not run")
    if row["error"]:
        parts.append(f"failed: {row['error']['code']}")
    return ", ".join(parts)


def markdown(
    rows: Sequence[Mapping[str, Any]], title: str = "Matrix", times: bool = True
) -> str:
    """Return three tables: by model, all rows, and refused operators.

    ``times``: whether measured figures are included.
    """
    heads, body = by_model(rows, times)
    columns = [column for column in COLUMNS if times or column.head not in _MEASURED]
    parts = [
        f"# {_escaped(title)}",
        summary(rows, len(rows)),
        markdown_table(heads, body),
        "## Cells",
    ]
    cell_heads = [column.head for column in columns]
    parts.append(markdown_table(cell_heads, [cells(row, columns) for row in rows]))
    refused = [
        [str(r.count), r.backend, r.operator, r.reason, r.some_models()]
        for r in refusals_of(rows)
    ]
    if refused:
        parts += ["## Refused operators", markdown_table(REFUSED, refused)]
    return "\n\n".join(parts) + "\n"


REFUSED = ("count", "backend", "operator", "reason", "models")
"""The heads of the table of refused operators."""


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown, with markup in the texts escaped."""
    lines = ["| " + " | ".join(map(_escaped, row)) + " |" for row in (heads, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(heads), *lines[1:]])


_MARKS = {ord(mark): f"&#{ord(mark)};" for mark in "\\`*[]<>|&"}


def _escaped(text: str) -> str:
    """Return a text in which no character is markup of Markdown."""
    return printable(text).translate(_MARKS)


def comma_separated(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return all columns of all rows as CSV, with full numbers.

    Texts that spreadsheets would read as formulas are quoted.
    """
    into = io.StringIO()
    writer = csv.writer(into, lineterminator="\n")
    writer.writerow(column.head for column in COLUMNS)
    for row in rows:
        writer.writerow(_plain(column.value(row)) for column in COLUMNS)
    return into.getvalue()


def _plain(value: Value) -> Value:
    """Return a value for a cell of CSV, which spreadsheets do not run as a formula."""
    if isinstance(value, str):
        shown = printable(value)
        return f"'{shown}" if shown[:1] in ("=", "+", "-", "@") else shown
    return "" if value is None else value
