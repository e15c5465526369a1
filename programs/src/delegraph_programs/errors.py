"""The errors of this package, and the base of all errors of delegraph.

This module imports only the standard library, so that a command line can use it without
torch.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DelegraphError", "InputError", "Unsupported"]


class DelegraphError(Exception):
    """Base class of all errors, with a stable ``code``.

    The codes of this package are "input-invalid", "unsupported" and "forked-at-work".
    ``node``: the graph node that the error is about. ``source``: the line of the user's
    program. ``hint``: the way out. ``raised_by``: the plugin that raised the error and
    its task; None if delegraph raised it. A field is None if it is not known.
    """

    raised_by: str | None = None

    def __init__(
        self,
        code: str,
        message: str,
        node: Any = None,
        source: object = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.node = node
        self.source = source
        self.hint = hint

    def __str__(self) -> str:
        """Return the message, followed by lines for source, plugin and hint.

        The plugin has no line of its own if the message already names it.
        """
        where = f"\n  at {self.source}" if self.source else ""
        by = ""
        if self.raised_by and self.raised_by not in self.message:
            by = f"\n  raised by {self.raised_by}"
        hint = f"\n  hint: {self.hint}" if self.hint else ""
        return f"{self.message}{where}{by}{hint}"


class Unsupported(DelegraphError, RuntimeError):
    """A target cannot run a program or partition; the message explains why to the user."""


class InputError(DelegraphError, ValueError):
    """A program or its inputs do not have the expected form."""
