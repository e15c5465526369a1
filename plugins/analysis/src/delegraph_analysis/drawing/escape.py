"""Escape text from models and plugins for pages, so that it is never markup."""

from __future__ import annotations

import html
from collections.abc import Iterable

from delegraph.io.escape_for_terminal import LONGEST, printable

_TOOLTIP = 500
"""The most characters of one line of a tooltip."""


def text(value: object, longest: int = LONGEST) -> str:
    """Return ``str(value)``, escaped for the content and attributes of HTML and XML.

    Characters that do not print become escapes: control characters, those that change
    the direction of writing, and halves of surrogate pairs, which files cannot have. The
    text is cut after ``longest`` characters.
    """
    whole = str(value)
    shown = printable(whole[: longest + 1])
    if len(shown) > longest:
        shown = f"{shown[:longest]}… ({len(whole)} characters)"
    return html.escape(shown)


def lines(values: Iterable[object]) -> str:
    """Return a tooltip: each value as escaped text on a line, cut if it is long."""
    return "\n".join(text(v, _TOOLTIP) for v in values)
