"""Escapes text from models and plugins, so that no terminal reads it as a command."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["LONGEST", "printable", "table"]

LONGEST = 2000
"""The most characters of one text; names in a model may have any length."""


def printable(shown: str, kept: str = "") -> str:
    """Return ``shown`` with an escape in place of each character that does not print,
    except the characters in ``kept``.
    """
    if shown.isprintable():
        return shown
    # "unicode_escape" writes a line break as a backslash and the letter n
    return "".join(
        c if c.isprintable() or c in kept else c.encode("unicode_escape").decode()
        for c in shown
    )


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as the text of a table: columns are left-aligned, with two spaces
    between them. All rows have the same number of cells. Without rows, the text is
    empty.

    Characters that do not print, such as line breaks, are escaped.
    """
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in shown
    )
    return "\n".join(line.rstrip() for line in lines)
