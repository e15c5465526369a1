"""Tables of pages, in HTML, and their cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from delegraph.report import Fact

from ..drawing import text

FEW = 4
"""Entries of a cell that are visible without unfolding it."""
_LONG = 30
"""Rows above which a table scrolls in its own frame, to keep the next part in sight."""
_LINKED = 200
"""Most folded links of one cell; a cause may have thousands of boxes."""


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *kinds: str,
    ids: Sequence[str] = (),
    around: str = "wide",
) -> str:
    """A table of cells that are HTML already.

    ``kinds``: the class of each column. ``ids``: of rows that have one. ``around``: the
    classes of the frame: one that is ``wide`` scrolls to the sides, a ``short`` one and
    one of many rows also up and down, below the heads.
    """
    listed = list(rows)
    classes = [f' class="{kind}"' if kind else "" for kind in kinds]
    row_ids = [
        f' id="{ids[k]}"' if k < len(ids) and ids[k] else "" for k in range(len(listed))
    ]
    top = "".join(
        f'<th scope="col"{c}>{text(h)}</th>'
        for c, h in zip(classes, heads, strict=True)
    )
    body = (
        f"<tr{row_ids[k]}>{''.join(f'<td{c}>{cell}</td>' for c, cell in zip(classes, row, strict=True))}</tr>\n"
        for k, row in enumerate(listed)
    )
    around = "long" if around == "wide" and len(listed) > _LONG else around
    region = (
        ""
        if around == "wide"
        else f' tabindex="0" role="region" aria-label="{text(", ".join(heads))}"'
    )
    frame = f'<div class="{around}"{region}>'
    return f"{frame}<table>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{''.join(body)}</tbody></table></div>\n"


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
    """One fact of a row: its entries, or its short form; "" if there is nothing to
    tell.
    """
    value = fact.of(row)
    if fact.entries is None:
        return text(fact.short(value)) if fact.short else ""
    entries = fact.entries(value)
    return cell(entries, fact.short(value)) if fact.short else lines(entries)


def fact_class(fact: Fact, row: Any) -> str:
    """Return the class of the column of a fact that ``row`` has, too.

    Numbers are aligned to the right. Each of several entries has a line.
    """
    if fact.entries:
        return "text" if fact.short else "brief"
    return "number" if isinstance(fact.of(row), int) else "text"


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
    return (
        f"{' '.join(linked[:longest])}"
        f" <details><summary>more</summary>{rest}{end}</details>"
    )
