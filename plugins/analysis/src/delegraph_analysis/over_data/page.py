"""Write a page of scores over data, which opens without network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..drawing import head, text
from ..page.tables import table


class Table(NamedTuple):
    """A table of text. ``pictures``: the second column has HTML instead."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    pictures: bool = False


def render(title: str, programs: Table, worst: Table) -> str:
    """Return the page: a table of the programs, and the worst samples with pictures."""
    parts = [
        head("Accuracy over data", script="", images=True),
        f"<body>\n<header><h1>Accuracy over data</h1>\n<p>{text(title)}.",
        " The loss is the score of eager minus that of the program.</p></header>\n",
        _table(programs),
        "<h2>Worst samples</h2>\n",
        _table(worst) if worst.rows else "<p>No sample loses.</p>\n",
        "</body></html>\n",
    ]
    return "".join(parts)


def _table(shown: Table) -> str:
    rows = []
    for row in shown.rows:
        cells = [text(cell) for cell in row]
        if shown.pictures:
            cells[1] = row[1]
        rows.append(cells)
    return table(shown.heads, rows, *["text"] * len(shown.heads))
