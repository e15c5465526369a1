"""The errors of this package, and the base of all errors of delegraph.

This module imports only the standard library, so that a command line can use it without
torch.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DelegraphError", "InputError", "Unsupported"]


class DelegraphError(Exception):
    """Base class of all errors. ``code`` is stable: "input-invalid", "unsupported" or
    "forked-at-work" in this package.

    ``node``: the graph node that the error is about. ``source``: the line of the user's
    program. ``hint``: what to do about it. ``raised_by``: the plugin that raised the
    error and what it was called for; None if delegraph raised it. All of these are None
    if they are not known.
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
        """The message, and lines for the user's line, the plugin (unless the message
        names it) and the hint.
        """
        where = f"\n  at {self.source}" if self.source else ""
        by = (
            f"\n  raised by {self.raised_by}"
            if self.raised_by and self.raised_by not in self.message
            else ""
        )
        return f"{self.message}{where}{by}" + (
            f"\n  hint: {self.hint}" if self.hint else ""
        )


class Unsupported(DelegraphError, RuntimeError):
    """A program, or a partition, cannot be lowered for a target; the message says why,
    in the user's terms.
    """


class InputError(DelegraphError, ValueError):
    """A program or its inputs do not have the expected form."""
