"""Tables of pages, in HTML, and their cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from delegraph.report import Fact

from ..drawing import text

FEW = 4
"""Entries of a cell that are visible without unfolding it."""
_LONG = 30
"""A table with more rows scrolls in its own frame, so that the page stays short."""
_LINKED = 200
"""The most folded links of one cell; a cause may have thousands of boxes."""


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *kinds: str,
    ids: Sequence[str] = (),
    around: str = "wide",
) -> str:
    """Return a table. The heads are text, and the cells are HTML.

    ``kinds``: the class of each column, or "". ``ids``: the id of each row, or "".
    ``around``: the classes of its frame. A ``wide`` frame scrolls to the sides. A
    ``short`` frame, and that of many rows, also scrolls up and down below the heads.
    """
    listed = list(rows)
    classes = [f' class="{kind}"' if kind else "" for kind in kinds]
    top = ""
    for column, title in zip(classes, heads, strict=True):
        top += f'<th scope="col"{column}>{text(title)}</th>'
    body = []
    for k, row in enumerate(listed):
        row_id = f' id="{ids[k]}"' if k < len(ids) and ids[k] else ""
        cells = ""
        for column, content in zip(classes, row, strict=True):
            cells += f"<td{column}>{content}</td>"
        body.append(f"<tr{row_id}>{cells}</tr>\n")
    if around == "wide" and len(listed) > _LONG:
        around = "long"
    region = ""
    if around != "wide":  # it can be scrolled by keyboard
        region = f' tabindex="0" role="region" aria-label="{text(", ".join(heads))}"'
    return (
        f'<div class="{around}"{region}><table>\n<thead><tr>{top}</tr></thead>\n'
        f"<tbody>\n{''.join(body)}</tbody></table></div>\n"
    )


def code(value: str) -> str:
    """Return the element of a text in code."""
    return f"<code>{text(value)}</code>"


def link(target: str, shown: str) -> str:
    """Return a link to the element of the page with the id ``target``."""
    return f'<a href="#{target}">{text(shown)}</a>'


def cell(entries: Sequence[str], summary: str) -> str:
    """Return the entries, a line each; many entries are folded behind ``summary``."""
    if len(entries) <= FEW:
        return lines(entries)
    return f"<details><summary>{text(summary)}</summary>{lines(entries)}</details>"


def fact_cell(fact: Fact, row: Any) -> str:
    """Return the cell of a fact of a row: its entries, or its short form, or ""."""
    value = fact.of(row)
    if fact.entries is None:
        return text(fact.short(value)) if fact.short else ""
    entries = fact.entries(value)
    return cell(entries, fact.short(value)) if fact.short else lines(entries)


def fact_class(fact: Fact, row: Any) -> str:
    """Return the class of a fact's column. ``row`` is any row with this fact."""
    if fact.entries:
        return "text" if fact.short else "brief"
    return "number" if isinstance(fact.of(row), int) else "text"


def lines(entries: Iterable[str]) -> str:
    """Return the entries as code, a line each."""
    return "<br/>".join(code(entry) for entry in entries)


def places(boxes: Sequence[str], longest: int = 8) -> str:
    """Return links to boxes of a picture, by number; those after ``longest`` are folded."""
    linked = [link(box, f"{k}") for k, box in enumerate(boxes, start=1)]
    if len(linked) <= longest:
        return " ".join(linked) or '<span class="faint">none</span>'
    rest = " ".join(linked[longest : longest + _LINKED])
    end = " …" if len(linked) > longest + _LINKED else ""
    return (
        f"{' '.join(linked[:longest])}"
        f" <details><summary>more</summary>{rest}{end}</details>"
    )
