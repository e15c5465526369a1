"""What became of one MODEL of ``delegraph lower``, as JSON and as text."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..command.outcome import defect, describe_error
from ..errors import DelegraphError

if TYPE_CHECKING:
    from ..host.verify import Verification
    from ..report.model import Report


@dataclass
class Attempt:
    """One MODEL: how far its work came, the results so far, and the error that ended it.

    ``gates``: name -> error or None.
    """

    model: str
    report: Report | None = None
    verifications: dict[str, Verification] = field(default_factory=dict)
    written: dict[str, Any] | None = None
    reports: list[str] = field(default_factory=list)
    gates: dict[str, DelegraphError | None] = field(default_factory=dict)
    error: DelegraphError | None = None
    seconds: float = 0.0
    verbose: bool = False

    @property
    def output(self) -> Path | None:
        """Where the program was saved."""
        return None if self.written is None else Path(self.written["path"])

    def content(self) -> dict[str, Any]:
        """The fields of ``delegraph.lower/1``; also those that ``delegraph.error/1`` has if there is a report."""
        report = None if self.report is None else self.report.to_json()
        gates = {name: error is None for name, error in self.gates.items()}
        verification = None
        if self.verifications:
            from ..report.formats import verification_content

            verification = verification_content(self.verifications)
        written = {"output": self.written, "reports": self.reports}
        return {"report": report, "verification": verification, "gates": gates, **written}

    def row(self) -> dict[str, Any]:
        """The same as one object of several, for ``delegraph_analysis.commands.several``."""
        failed = None if self.error is None else describe_error(self.error)
        return {"model": self.model, "error": failed, **self.content(), "seconds": round(self.seconds, 3)}

    def text(self) -> str:
        """What is printed for a single MODEL: its report as text, and what was written."""
        from ..report.formats import TextReport

        lines = [] if self.report is None else [TextReport.render(self).rstrip()]
        lines += [f"wrote {self.written['path']} ({self.written['bytes']} bytes)"] if self.written else []
        lines += [f"wrote {', '.join(self.reports)}"] if len(self.reports) > 1 else []
        return "\n".join(lines)


@contextlib.contextmanager
def attempt(made: Attempt) -> Iterator[None]:
    """A block of work on a MODEL: an error ends it, and becomes the error of ``made``."""
    start = time.perf_counter()
    try:
        yield
    except DelegraphError as e:
        made.error = e
    except (Exception, SystemExit) as e:  # a defect; other MODELs may be fine
        made.error = defect(e)
        made.error.__cause__ = e
    made.seconds = time.perf_counter() - start
