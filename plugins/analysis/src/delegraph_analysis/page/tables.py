"""Tables of pages, in HTML; what a cell is made of; and pages and notebook cells that hold nothing but tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from delegraph.reports import Fact, list_counts

from ..drawing import head, text

FEW = 4
"""Entries that a cell of a table shows without being unfolded, or at all."""
_SHORT = 20
"""Characters of a cell that needs no broad column."""
_LONGEST_CELL = 300
"""Characters of a cell in a notebook."""
_MOST_ROWS = 12
"""Rows of a table in a notebook."""
_LONG = 30
"""Rows of a table that scrolls in a frame of its own, so that what follows is found."""
_LINKED = 200
"""Links of one cell that are folded away; a cause may have thousands of boxes."""
Section = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""Title, heads and rows, all of text."""


def tables(title: str, sections: Iterable[Section]) -> str:
    """A page of tables alone. A table without rows is left out."""
    parts = [head(title, viewer=False), f"<body>\n<header><h1>{text(title)}</h1></header>\n"]
    for name, heads, rows in sections:
        if rows:
            cells = [[text(cell) for cell in row] for row in rows]
            kinds = ["text" if is_long else "" for is_long in _long(rows)]
            parts.append(f"<h2>{text(name)}</h2>\n{table(heads, cells, *kinds)}")
    return "".join([*parts, "</body></html>\n"])


def page_of_rows(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A page with one table, whose cells are HTML."""
    top = f"<body>\n<header><h1>{text(title)}</h1></header>\n"
    return f"{head(title, viewer=False)}{top}{table(heads, rows, *['text'] * len(heads))}</body></html>\n"


def fragment(title: str, lines: Iterable[str], sections: Iterable[Section]) -> str:
    """The same for a cell of a notebook, which has a style of its own: no style sheet, no script, no ids.
    Notebooks align cells to the right, where text of several lines cannot be read.

    It has ``lines`` of text, then the first ``_MOST_ROWS`` rows of each table.
    """
    parts = [f"<div><strong>{text(title)}</strong>", *(f"<div>{text(line)}</div>" for line in lines)]
    for name, heads, rows in sections:
        if rows:
            looks = [' style="text-align: left"' if is_long else "" for is_long in _long(rows)]
            top = "".join(f"<th{look}>{text(h)}</th>" for look, h in zip(looks, heads, strict=True))
            cells = [zip(looks, row, strict=True) for row in rows[:_MOST_ROWS]]
            body = "".join(
                "<tr>" + "".join(f"<td{look}>{text(cell, _LONGEST_CELL)}</td>" for look, cell in row) + "</tr>"
                for row in cells
            )
            more = f"<div>and {len(rows) - _MOST_ROWS:,} more</div>" if len(rows) > _MOST_ROWS else ""
            shown = f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody>"
            parts.append(f"<div>{text(name)}</div><table>{shown}</table>{more}")
    return "".join([*parts, "</div>"])


def kinds(operators: Mapping[str, int]) -> str:
    """The most frequent of the operators, as text."""
    listed = list_counts(operators)
    return ", ".join([*listed[:FEW], *([f"and {len(listed) - FEW} more kinds"] if len(listed) > FEW else [])])


def _long(rows: Sequence[Sequence[str]]) -> list[bool]:
    """Whether each column has a long text."""
    return [max(map(len, column)) > _SHORT for column in zip(*rows, strict=True)]


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *kinds: str, ids: Sequence[str] = (), around: str = "wide"
) -> str:
    """A table of cells that are HTML already.

    ``kinds``: the class of each column. ``ids``: of rows that have one. ``around``: the classes of the frame: one that
    is ``wide`` scrolls to the sides, a ``short`` one and one of many rows also up and down, below the heads.
    """
    listed = list(rows)
    classes = [f' class="{kind}"' if kind else "" for kind in kinds]
    row_ids = [f' id="{ids[k]}"' if k < len(ids) and ids[k] else "" for k in range(len(listed))]
    top = "".join(f'<th scope="col"{c}>{text(h)}</th>' for c, h in zip(classes, heads, strict=True))
    body = (
        f"<tr{row_ids[k]}>{''.join(f'<td{c}>{cell}</td>' for c, cell in zip(classes, row, strict=True))}</tr>\n"
        for k, row in enumerate(listed)
    )
    around = "long" if around == "wide" and len(listed) > _LONG else around
    region = "" if around == "wide" else f' tabindex="0" role="region" aria-label="{text(", ".join(heads))}"'
    frame = f'<div class="{around}"{region}>'
    return f"{frame}<table>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{''.join(body)}</tbody></table></div>\n"


def code(value: str) -> str:
    """Text as it stands in a program."""
    return f"<code>{text(value)}</code>"


def link(target: str, shown: str) -> str:
    """A link to the element of the page whose id is ``target``."""
    return f'<a href="#{target}">{text(shown)}</a>'


def cell(entries: Sequence[str], summary: str) -> str:
    """The entries, a line each; many are folded away behind ``summary``."""
    if len(entries) <= FEW:
        return lines(entries)
    return f"<details><summary>{text(summary)}</summary>{lines(entries)}</details>"


def fact_cell(fact: Fact, row: Any) -> str:
    """One fact of a row: its entries, or its short form; "" if there is nothing to tell."""
    value = fact.of(row)
    if fact.entries is None:
        return text(fact.short(value)) if fact.short else ""
    entries = fact.entries(value)
    return cell(entries, fact.short(value)) if fact.short else lines(entries)


def fact_class(fact: Fact) -> str:
    """The class of its column: figures stand to the right, and each of several entries on one line."""
    if fact.entries:
        return "text" if fact.short else "brief"
    return "number" if fact.kind.schema.get("type") == "integer" else "text"


def lines(entries: Iterable[str]) -> str:
    """A line of code for each."""
    return "<br/>".join(code(entry) for entry in entries)


def places(boxes: Sequence[str], longest: int = 8) -> str:
    """Links to boxes of a picture, by number; many are folded away."""
    linked = [link(box, f"{k}") for k, box in enumerate(boxes, start=1)]
    if len(linked) <= longest:
        return " ".join(linked) or '<span class="faint">none</span>'
    rest = " ".join(linked[longest : longest + _LINKED])
    end = " …" if len(linked) > longest + _LINKED else ""
    return f"{' '.join(linked[:longest])} <details><summary>more</summary>{rest}{end}</details>"
