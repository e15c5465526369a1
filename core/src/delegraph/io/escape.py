"""Escapes text from models and plugins for pages and terminals: it cannot act as markup, and all of it is visible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["LONGEST", "lines", "printable", "table", "text"]

LONGEST = 2000
"""The most characters of one text; names in a model may have any length."""
_TOOLTIP = 500
"""The most characters of one line of a tooltip."""


def text(value: object, longest: int = LONGEST) -> str:
    """``value`` for content and for attributes, in both HTML and XML.

    A character that does not print becomes its escape: control characters, those that change the direction of writing,
    and halves of surrogate pairs, which no file can hold. A text longer than ``longest`` after that is cut off.
    """
    import html  # imported late: it has a table of all entities, which only pages need

    whole = str(value)
    shown = printable(whole[: longest + 1])
    if len(shown) > longest:
        shown = f"{shown[:longest]}… ({len(whole)} characters)"
    return html.escape(shown)


def printable(shown: str, kept: str = "") -> str:
    """``shown`` with the escape of each character that does not print, except for those in ``kept``."""
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in shown)


def lines(values: Iterable[object]) -> str:
    """Several texts, one on each line, as in a tooltip."""
    return "\n".join(text(v, _TOOLTIP) for v in values)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns, two spaces apart. A cell stays on one line, whatever is in it."""
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[k]) for row in shown) for k in range(len(shown[0]))] if shown else []
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in shown)
    return "\n".join(line.rstrip() for line in lines)
