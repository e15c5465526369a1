"""Define the exceptions of checks that fail or do not apply."""

from __future__ import annotations

import textwrap
import unittest
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .program_text import listing

if TYPE_CHECKING:
    from .programs import Program


class CheckFailed(AssertionError):
    """A backend broke a rule: the ``problem``, its ``program``, and ``advice``.

    ``more`` are further cases. ``ending`` is Python that shows the failure, after the
    lines of the program.
    """

    def __init__(
        self,
        problem: str,
        program: Program | None = None,
        advice: str = "",
        more: Sequence[str] = (),
        ending: str = "",
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.program = program
        self.advice = advice
        self.more = tuple(more)
        self.ending = ending

    @property
    def script(self) -> str:
        """Return complete Python that repeats the failure; "" without a program."""
        if self.program is None:
            return ""
        return f"{listing(self.program).rstrip()}\n\n{self.ending}"

    def __str__(self) -> str:
        lines = [self.problem]
        if self.program is not None:
            lines.append(f"on program {self.program.name}:")
            lines.append(textwrap.indent(self.script.strip(), "    "))
        if self.more:
            lines.append(f"and {len(self.more)} more:")
            lines += [f"    {text}" for text in self.more[:10]]
        if self.advice:
            lines.append(f"hint: {self.advice}")
        return "\n".join(lines)


class CheckSkipped(unittest.SkipTest):
    """The check does not apply to this backend; the message has the reason.

    pytest shows a skipped test.
    """
