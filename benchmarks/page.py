"""Write RESULTS.md and the figures that the guides quote, from templates/ and results/.

    python -m benchmarks page [--check]

A template is Markdown with places in double braces:

    {{data QUESTION}}                       a link to the file with all tables of a question, and its newest day
    {{cell TABLE | ROW | COLUMN | .1f}}     one figure; the format, of the number that begins it, is optional
    {{range TABLE | COLUMN | .1f | ...}}    the least and the largest figure of a column
    {{count TABLE | ...}}                   the number of rows
    {{table TABLE | ...}}                   a table

TABLE is QUESTION or QUESTION/NAME. Choices, in place of the dots, are optional:

    only ROW; ROW                           these rows, by the first column or by all keys with " / " between
    where COLUMN = CELL                     rows with this cell
    columns COLUMN; COLUMN                  these columns of a table

templates/results.md makes RESULTS.md. A page of the project has blocks between ``<!--
figures: NAME -->`` and ``<!-- end of figures -->``, which templates/NAME.md makes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import publishing

HERE = Path(__file__).parent
PLACE = re.compile(r"\{\{(.+?)\}\}")
BLOCK = re.compile(
    r"(<!-- figures: ([\w-]+) -->\n)(.*?)(<!-- end of figures -->)", re.DOTALL
)
NUMBER = re.compile(r"-?[\d,]*\.?\d+(e[-+]?\d+)?")
Rows = list[list[Any]]


class Template:
    """Fills templates with the published figures in ``results``; ``linked`` are the
    questions with a link.
    """

    def __init__(self, results: Path = publishing.RESULTS) -> None:
        self._results = results
        self.linked: set[str] = set()

    def fill(self, text: str) -> str:
        """Return the text with figures in its places.

        Raises ValueError with the place if its figure is not published.
        """
        return PLACE.sub(lambda place: self._place(place[0], place[1]), text)

    def _place(self, place: str, inside: str) -> str:
        kinds: dict[str, Callable[..., str]] = {
            "data": self._data,
            "cell": self._cell,
            "range": self._range,
            "count": self._count,
            "table": self._table,
        }
        words, *rest = (part.strip() for part in inside.split(" | "))
        kind, _, name = words.partition(" ")
        if kind not in kinds:
            raise ValueError(f"{place}: a place begins with {', '.join(kinds)}")
        try:
            return kinds[kind](name, *rest)
        except (LookupError, ValueError, TypeError, FileNotFoundError) as e:
            raise ValueError(f"{place}: {e!r}") from e

    def _published(self, question: str) -> dict[str, Any]:
        published: dict[str, Any] = json.loads(
            (self._results / f"{question}.json").read_text("utf-8")
        )
        return published

    def _find(self, name: str) -> dict[str, Any]:
        """Return the table ``QUESTION`` or ``QUESTION/NAME``."""
        question, _, wanted = name.partition("/")
        tables = {table["name"]: table for table in self._published(question)["tables"]}
        if wanted not in tables:
            raise LookupError(f"no table {wanted!r} in {[*tables]}")
        table: dict[str, Any] = tables[wanted]
        return table

    def _data(self, question: str) -> str:
        day = max(run["date"] for run in self._published(question)["runs"])
        self.linked.add(question)
        return f"[{question}](results/{question}.json), {day}"

    def _table(self, name: str, *choices: str) -> str:
        table = self._find(name)
        columns = table["columns"]
        shown = columns
        wanted_rows = []
        for choice in choices:
            if choice.startswith("columns "):
                shown = choice.removeprefix("columns ").split("; ")
            else:
                wanted_rows.append(choice)
        places = [1 + columns.index(column) for column in shown]
        rows = [[row[place] for place in places] for row in _chosen(table, wanted_rows)]
        return publishing.markdown(shown, rows).rstrip("\n")

    def _count(self, name: str, *choices: str) -> str:
        return str(len(_chosen(self._find(name), choices)))

    def _cell(self, name: str, row: str, column: str, form: str = "") -> str:
        table = self._find(name)
        [found] = _chosen(table, [f"only {row}"])
        cell = found[1 + table["columns"].index(column)]
        return format(_number(cell), form) if form else str(cell)

    def _range(self, name: str, column: str, form: str, *choices: str) -> str:
        table = self._find(name)
        place = 1 + table["columns"].index(column)
        cells = [row[place] for row in _chosen(table, choices)]
        numbers = [_number(cell) for cell in cells if NUMBER.match(cell)]
        least = format(min(numbers), form)
        largest = format(max(numbers), form)
        return least if least == largest else f"{least} to {largest}"


def _number(cell: str) -> float:
    """Return the number at the beginning of a cell."""
    found = NUMBER.match(cell)
    if found is None:
        raise ValueError(f"no number begins {cell!r}")
    return float(found[0].replace(",", ""))


def _chosen(table: dict[str, Any], choices: Sequence[str]) -> Rows:
    """Return the rows that all choices leave."""
    rows: Rows = table["rows"]
    for choice in choices:
        kind, _, value = choice.partition(" ")
        if kind == "only":
            wanted = value.split("; ")
            names = {
                id(row): {row[1], " / ".join(row[1 : 1 + table["keys"]])}
                for row in rows
            }
            missing = set(wanted) - set().union(*names.values())
            if missing:
                raise LookupError(f"no rows {sorted(missing)}")
            rows = [row for name in wanted for row in rows if name in names[id(row)]]
        elif kind == "where":
            column, _, wanted_cell = value.partition(" = ")
            place = 1 + table["columns"].index(column)
            rows = [row for row in rows if row[place] == wanted_cell]
        else:
            raise ValueError(f"{choice!r} is not only, where or columns")
    return rows


def written(root: Path = HERE.parent) -> dict[Path, str]:
    """Return each page with its text. Raises ValueError if RESULTS.md has no link to a
    published question.
    """
    folder = root / "benchmarks"
    template = Template(folder / "results")
    pages = {
        folder / "RESULTS.md": template.fill(
            (folder / "templates" / "results.md").read_text("utf-8")
        )
    }
    missing = {
        path.stem for path in (folder / "results").glob("*.json")
    } - template.linked
    if missing:
        raise ValueError(
            "templates/results.md has no {{data ...}} for"
            f" {', '.join(sorted(missing))}"
        )

    def block(found: re.Match[str]) -> str:
        filled = template.fill(
            (folder / "templates" / f"{found[2]}.md").read_text("utf-8")
        )
        return f"{found[1]}\n{filled}\n{found[4]}"

    for path in sorted((root / "docs").glob("**/*.md")):
        text = path.read_text("utf-8")
        if BLOCK.search(text):
            pages[path] = BLOCK.sub(block, text)
    return pages


def stale(root: Path = HERE.parent) -> list[Path]:
    """Return the pages whose figures are not the published ones."""
    return [
        path
        for path, text in written(root).items()
        if not path.exists() or path.read_text("utf-8") != text
    ]


def write() -> None:
    """Write the pages that are stale."""
    pages = written()
    for path in stale():
        path.write_text(pages[path], "utf-8")
        print(f"wrote {path.relative_to(HERE.parent)}")
