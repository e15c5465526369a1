"""What a script prints, and with ``--publish`` keeps in results/QUESTION.json, from
which page.py writes RESULTS.md.

A question has tables; a table has rows, each with the run that it is of: command, date,
versions, machine, load. A row is replaced by the newest run that has it. JSON, since
The guides and the page quote single cells by name, for which Markdown would have to be
parsed; cells are texts as the page shows them. Needs the standard library only.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

RESULTS = Path(__file__).with_name("results")
# when the script started
_LOAD = os.getloadavg()[0] if hasattr(os, "getloadavg") else None


@dataclass(frozen=True)
class Table:
    """A table of a question. Of its ``columns``, which differ, the first ``keys`` say
    what a row is about.
    """

    columns: Sequence[str]
    rows: Iterable[Sequence[str]]
    name: str = ""
    """What tells it from the other tables of the question."""
    keys: int = 1


def parser(about: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every script; ``about`` is the script's docstring."""
    made = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options = made.add_argument_group("publishing")
    options.add_argument(
        "--publish",
        action="store_true",
        help="keep the rows in results/; others stay there",
    )
    options.add_argument(
        "--publish-whole",
        action="store_true",
        help="let a table have the rows of this run alone",
    )
    options.add_argument(
        "--remark",
        default="",
        metavar="TEXT",
        help="what a reader of the figures has to know",
    )
    return made


def report(
    given: argparse.Namespace, question: str, packages: Iterable[str], *tables: Table
) -> None:
    """Print the tables, and publish them if the arguments ``given`` say so.

    ``packages`` are names of distributions, or texts like ``executorch 1.5.1`` for what
    is installed elsewhere.
    """
    run = _run(packages, given.remark)
    print(described(run) + "\n")
    listed = [
        Table(t.columns, [list(row) for row in t.rows], t.name, t.keys) for t in tables
    ]
    for table in listed:
        print(
            (f"{table.name}:\n\n" if table.name else "")
            + markdown(table.columns, table.rows)
        )
    if given.publish or given.publish_whole:
        path = RESULTS / f"{question}.json"
        before = (
            json.loads(path.read_text("utf-8"))
            if path.exists()
            else {"runs": [], "tables": []}
        )
        write(path, merged(before, run, listed, whole=given.publish_whole))
        print(f"published in {path}; now: python -m benchmarks page")


def told(row: Sequence[str]) -> Sequence[str]:
    """The row, which is shown at once to those who wait for the table."""
    print(" | ".join(row), file=sys.stderr, flush=True)
    return row


def of_vela(program: str | None) -> list[str]:
    """The version of a Vela that lies elsewhere, as one of the ``packages``."""
    if program is None:
        return []
    shown = subprocess.run(
        [program, "--version"], check=True, capture_output=True, text=True
    ).stdout
    return [f"ethos-u-vela {shown.split()[-1]}"]


def _run(packages: Iterable[str], remark: str) -> dict[str, Any]:
    versions = [
        p if " " in p else f"{p} {importlib.metadata.version(p)}" for p in packages
    ]
    machine = (
        f"{os.cpu_count()} cores, {platform.machine()}, Python"
        f" {platform.python_version()}"
    )
    load = "" if _LOAD is None else f"{_LOAD:.1f} to {os.getloadavg()[0]:.1f}"
    run = {
        "command": command(sys.argv),
        "date": time.strftime("%Y-%m-%d"),
        "versions": versions,
        "machine": machine,
    }
    return {**run, "load": load, "remark": remark}


def command(words: Sequence[str]) -> str:
    """How the script was called, without the options for publishing and the folders of
    this machine.
    """
    kept = []
    rest = iter(words[1:])
    for word in rest:
        if word == "--remark":
            next(rest)
        elif word not in ("--publish", "--publish-whole") and not word.startswith(
            "--remark="
        ):
            option, equals, value = word.rpartition("=")
            kept.append(
                option
                + equals
                + (PurePath(value).name if PurePath(value).is_absolute() else value)
            )
    return shlex.join(["python", f"benchmarks/{Path(words[0]).name}", *kept])


def described(run: dict[str, Any]) -> str:
    """What a reader has to know about the figures of a run."""
    load = f"load {run['load']}" if run["load"] else ""
    return "; ".join(filter(None, [f"`{run['command']}`, {run['date']}", ", ".join(run["versions"]), run["machine"],
                                   load, run["remark"]]))  # fmt: skip


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A markdown table: first column left, the others right."""
    lines = ["| " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(columns) - 1)]
    return (
        "\n".join(
            [
                *lines,
                *(
                    "| " + " | ".join(_in_a_cell(text) for text in row) + " |"
                    for row in rows
                ),
            ]
        )
        + "\n"
    )


def _in_a_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def merged(
    before: dict[str, Any], run: dict[str, Any], tables: Sequence[Table], *, whole: bool
) -> dict[str, Any]:
    """What was published, with the rows of a run in place of those of the same keys, or
    of all if it is ``whole``.
    """
    runs = [*before["runs"], run]
    kept = {t["name"]: dict(t) for t in before["tables"]}
    for table in tables:
        if len(set(table.columns)) != len(table.columns):
            raise ValueError(f"two columns have one name: {table.columns}")
        new = {tuple(row[: table.keys]): [len(runs) - 1, *row] for row in table.rows}
        old = kept.get(table.name, {}) if not whole else {}
        rows = {tuple(row[1 : 1 + table.keys]): row for row in old.get("rows", [])}
        if (
            old
            and old["columns"] != list(table.columns)
            and not rows.keys() <= new.keys()
        ):
            raise ValueError(
                "rows that are published have other columns; --publish-whole leaves"
                " them out"
            )
        fields = {
            "name": table.name,
            "keys": table.keys,
            "columns": list(table.columns),
        }
        kept[table.name] = {**fields, "rows": [*(rows | new).values()]}
    used = sorted({row[0] for table in kept.values() for row in table["rows"]})
    for kept_table in kept.values():
        kept_table["rows"] = [
            [used.index(row[0]), *row[1:]] for row in kept_table["rows"]
        ]
    return {"runs": [runs[number] for number in used], "tables": [*kept.values()]}


def write(path: Path, published: dict[str, Any]) -> None:
    """Write the file whole or not at all, a row on a line."""
    text = "\n".join(_lines(published)) + "\n"
    path.parent.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, delete=False
    ) as file:
        file.write(text)
    os.chmod(file.name, 0o644)  # a temporary file is its owner's alone
    os.replace(file.name, path)


def _lines(published: dict[str, Any]) -> Iterator[str]:
    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    yield '{"runs": ['
    yield ",\n".join(f"  {text(run)}" for run in published["runs"]) + "],"
    yield '"tables": ['
    last = len(published["tables"]) - 1
    for number, table in enumerate(published["tables"]):
        head = {name: table[name] for name in ("name", "keys", "columns")}
        yield f' {text(head)[:-1]}, "rows": ['
        yield ",\n".join(f"  {text(row)}" for row in table["rows"]) + (
            "]}" if number == last else "]},"
        )
    yield "]}"
