"""RESULTS.md and what README and the guides quote, from templates/ and results/.

    python -m benchmarks page [--check]

A template is Markdown with places in double braces:

    {{index}}                               the questions of the page (headings of the third level), by part
    {{table QUESTION[/TABLE]}}              the tables of a question or one of them, and the runs of its rows
    {{table ... | only KEY; KEY | first 9}} some of its rows, by the first column or by all keys with " / " between
    {{table ... | where COLUMN = CELL}}     those that have that
    {{table ... | bare}}                    without the runs
    {{count QUESTION[/TABLE]}}              how many rows it has
    {{cell QUESTION[/TABLE] | ROW | COLUMN | .1f}}   one figure; the format, of the number that begins it, is optional

templates/results.md makes RESULTS.md. A page of the project has blocks between ``<!-- figures: NAME -->`` and
``<!-- end of figures -->``, which templates/NAME.md makes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import publishing

HERE = Path(__file__).parent
PLACE = re.compile(r"\{\{(.+?)\}\}")
BLOCK = re.compile(r"(<!-- figures: ([\w-]+) -->\n)(.*?)(<!-- end of figures -->)", re.DOTALL)
Rows = list[list[Any]]


class Template:
    """Fills templates with what is published in ``results``; ``used`` are the questions whose tables were shown."""

    def __init__(self, results: Path = publishing.RESULTS) -> None:
        self._results = results
        self.used: set[str] = set()

    def fill(self, text: str) -> str:
        """The text with figures in its places; ValueError names a place that asks for what is not published."""
        filled = PLACE.sub(lambda place: self._place(place[0], place[1]), text)
        return filled.replace("{{}}", _index(filled))

    def _place(self, place: str, inside: str) -> str:
        kinds: dict[str, Callable[..., str]]
        kinds = {"table": self._tables, "cell": self._cell, "count": self._count, "index": lambda _: "{{}}"}
        words, *rest = (part.strip() for part in inside.split(" | "))
        kind, _, name = words.partition(" ")
        if kind not in kinds:
            raise ValueError(f"{place}: a place begins with {', '.join(kinds)}")
        try:
            return kinds[kind](name, *rest)
        except (LookupError, ValueError, TypeError, FileNotFoundError) as e:
            raise ValueError(f"{place}: {e!r}") from e

    def _of(self, name: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The runs and the tables of ``QUESTION[/TABLE]``."""
        question, _, table = name.partition("/")
        published = json.loads((self._results / f"{question}.json").read_text("utf-8"))
        tables = [t for t in published["tables"] if table in ("", t["name"])]
        if not tables:
            raise LookupError(f"no table {table!r} in {[t['name'] for t in published['tables']]}")
        return published["runs"], tables

    def _tables(self, name: str, *choices: str) -> str:
        runs, tables = self._of(name)
        self.used.add(name.partition("/")[0])
        pieces, chosen = [], []
        for table in tables:
            rows = _chosen(table, choices)
            chosen += [(table, row) for row in rows]
            pieces.append(publishing.markdown(table["columns"], [row[1:] for row in rows]))
        return "\n".join([*pieces, *([] if "bare" in choices else [_runs(runs, chosen)])]).rstrip("\n")

    def _count(self, name: str) -> str:
        return str(sum(len(table["rows"]) for table in self._of(name)[1]))

    def _cell(self, name: str, row: str, column: str, form: str = "") -> str:
        _, [table] = self._of(name)
        [found] = _chosen(table, [f"only {row}"])
        cell = found[1 + table["columns"].index(column)]
        if not form:
            return str(cell)
        number = re.match(r"-?[\d,]*\.?\d+(e[-+]?\d+)?", cell)
        if number is None:
            raise ValueError(f"no number begins {cell!r}")
        return format(float(number[0].replace(",", "")), form)


def _chosen(table: dict[str, Any], choices: Any) -> Rows:
    rows: Rows = table["rows"]
    for choice in choices:
        kind, _, value = choice.partition(" ")
        if kind == "only":
            wanted = value.split("; ")
            names = {id(row): {row[1], " / ".join(row[1 : 1 + table["keys"]])} for row in rows}
            missing = set(wanted) - set().union(*names.values())
            if missing:
                raise LookupError(f"no rows {sorted(missing)}")
            rows = [row for name in wanted for row in rows if name in names[id(row)]]
        elif kind == "first":
            rows = rows[: int(value)]
        elif kind == "where":
            column, _, wanted_cell = value.partition(" = ")
            place = 1 + table["columns"].index(column)
            rows = [row for row in rows if row[place] == wanted_cell]
        elif choice != "bare":
            raise ValueError(f"{choice!r} is not only, where, first or bare")
    return rows


def _runs(runs: list[dict[str, Any]], chosen: list[tuple[dict[str, Any], list[Any]]]) -> str:
    """The runs of rows; where they are several, with the names of the rows, but for those of the run that has most."""
    by_run: dict[int, list[str]] = {}
    for table, row in chosen:
        by_run.setdefault(row[0], []).append(" / ".join(row[1 : 1 + table["keys"]]))
    ordered = sorted(by_run.items(), key=lambda item: -len(item[1]))
    lines = []
    for place, (number, names) in enumerate(ordered):
        rows = f" (rows {'; '.join(names)})" if place else ""
        lines.append(f"{publishing.described(runs[number])}{rows}\n")
    return "\n".join(lines)


def _index(text: str) -> str:
    """The questions by part."""
    lines = []
    for level, heading in re.findall(r"^(##|###) (.+)$", text, flags=re.MULTILINE):
        anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        lines.append(("- " if level == "##" else "  - ") + f"[{heading}](#{anchor})")
    return "\n".join(lines)


def written(root: Path = HERE.parent) -> dict[Path, str]:
    """Page -> what has to stand in it."""
    folder = root / "benchmarks"
    template = Template(folder / "results")
    pages = {folder / "RESULTS.md": template.fill((folder / "templates" / "results.md").read_text("utf-8"))}
    unused = {path.stem for path in (folder / "results").glob("*.json")} - template.used
    if unused:
        raise ValueError(f"templates/results.md shows no table of {', '.join(sorted(unused))}")

    def block(found: re.Match[str]) -> str:
        filled = template.fill((folder / "templates" / f"{found[2]}.md").read_text("utf-8"))
        return f"{found[1]}\n{filled}\n{found[4]}"

    for path in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        text = path.read_text("utf-8")
        if BLOCK.search(text):
            pages[path] = BLOCK.sub(block, text)
    return pages


def stale(root: Path = HERE.parent) -> list[Path]:
    """The pages that have other figures than what is published."""
    return [path for path, text in written(root).items() if not path.exists() or path.read_text("utf-8") != text]


def write() -> None:
    """Write the pages that are stale."""
    pages = written()
    for path in stale():
        path.write_text(pages[path], "utf-8")
        print(f"wrote {path.relative_to(HERE.parent)}")
