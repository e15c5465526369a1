"""Text of others in a page or on a terminal: nothing in it is markup, and nothing in it is invisible."""

from __future__ import annotations

from collections.abc import Iterable

LONGEST = 2000
"""Characters of one text; a model may have names of any length."""
_TOOLTIP = 500
"""Characters of one line of a tooltip."""


def text(value: object, longest: int = LONGEST) -> str:
    """``value`` for content and for attributes, in both HTML and XML.

    Whatever does not print stands there by its escape: control characters, among them those that change the direction
    of writing, and halves of surrogate pairs, which no file can hold. Of a text that is longer so, the rest is cut off.
    """
    import html  # with a table of all entities, which only pages need

    whole = str(value)
    shown = printable(whole[: longest + 1])
    if len(shown) > longest:
        shown = f"{shown[:longest]}… ({len(whole)} characters)"
    return html.escape(shown)


def printable(shown: str, kept: str = "") -> str:
    """``shown`` with whatever does not print, but for the characters ``kept``, by its escape."""
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() or c in kept else _visible(c) for c in shown)


def lines(values: Iterable[object]) -> str:
    """Several texts, a line each, as in a tooltip."""
    return "\n".join(text(v, _TOOLTIP) for v in values)


def _visible(character: str) -> str:
    return character.encode("unicode_escape").decode()
