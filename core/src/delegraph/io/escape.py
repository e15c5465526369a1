"""Escapes text from models and plugins for pages and terminals, so that it is never
markup or a control character.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["LONGEST", "lines", "printable", "table", "text"]

LONGEST = 2000
"""The most characters of one text; names in a model may have any length."""
_TOOLTIP = 500
"""The most characters of one line of a tooltip."""


def text(value: object, longest: int = LONGEST) -> str:
    """``str(value)``, escaped for the content and the attributes of HTML and XML.

    Characters that do not print become escapes: control characters, those that change
    the direction of writing, and halves of surrogate pairs, which no file can hold. The
    text is cut after ``longest`` characters.
    """
    import html  # imported late: its table of all entities is needed for pages only

    whole = str(value)
    shown = printable(whole[: longest + 1])
    if len(shown) > longest:
        shown = f"{shown[:longest]}… ({len(whole)} characters)"
    return html.escape(shown)


def printable(shown: str, kept: str = "") -> str:
    """``shown`` with an escape in place of each character that does not print;
    characters in ``kept`` stay.
    """
    if shown.isprintable():
        return shown
    # the escape is that of Python's literals: "\n" becomes a backslash and an n
    return "".join(
        c if c.isprintable() or c in kept else c.encode("unicode_escape").decode()
        for c in shown
    )


def lines(values: Iterable[object]) -> str:
    """A tooltip: each value as escaped text (see ``text``) on a line of its own, cut to
    a tooltip's width.
    """
    return "\n".join(text(v, _TOOLTIP) for v in values)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of equally many cells as text: columns are left-aligned, two spaces apart;
    line breaks are escaped.
    """
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = (
        [max(len(row[k]) for row in shown) for k in range(len(shown[0]))]
        if shown
        else []
    )
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in shown
    )
    return "\n".join(line.rstrip() for line in lines)
