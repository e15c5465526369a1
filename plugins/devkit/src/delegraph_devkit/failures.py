"""How a check ends that does not pass."""

from __future__ import annotations

import textwrap
import unittest
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .program_text import listing

if TYPE_CHECKING:
    from .programs import Program


class CheckFailed(AssertionError):
    """A rule was broken: ``what``, on which ``program``, and the ``advice`` what to do;
    ``more`` are further cases.

    ``ending`` are the lines of Python that show the failure, behind those of the
    program.
    """

    def __init__(
        self,
        what: str,
        program: Program | None = None,
        advice: str = "",
        more: Sequence[str] = (),
        ending: str = "",
    ) -> None:
        super().__init__(what)
        self.what = what
        self.program = program
        self.advice = advice
        self.more = tuple(more)
        self.ending = ending

    @property
    def script(self) -> str:
        """Python that shows the failure again, complete; empty if the failure has no
        program.
        """
        return (
            ""
            if self.program is None
            else f"{listing(self.program).rstrip()}\n\n{self.ending}"
        )

    def __str__(self) -> str:
        shown = [self.what]
        if self.program is not None:
            shown += [
                f"on program {self.program.name}:",
                textwrap.indent(self.script.strip(), "    "),
            ]
        if self.more:
            shown += [
                f"and {len(self.more)} more:",
                *(f"    {text}" for text in self.more[:10]),
            ]
        return "\n".join(
            [*shown, *([f"what to do: {self.advice}"] if self.advice else [])]
        )


class CheckSkipped(unittest.SkipTest):
    """The check does not apply to this backend; the message says why.

    pytest shows it as a skipped test.
    """
