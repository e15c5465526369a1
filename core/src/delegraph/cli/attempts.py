"""The result of ``delegraph lower`` for one MODEL, as JSON and as text."""

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
    """The results for one MODEL so far. It is a ``LoweringResult``, from which reports are written.

    ``written``: path and size of the saved program; None if it was not saved. ``reports``: paths of the reports.
    ``gates``: name -> error, or None if passed. ``error``: the error that ended the work; None if all was done.
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
        """The path of the saved program; None if it was not saved."""
        return None if self.written is None else Path(self.written["path"])

    def content(self) -> dict[str, Any]:
        """The fields of the JSON form ``delegraph.lower/1``, which a failed command adds to ``delegraph.error/1``."""
        report = None if self.report is None else self.report.to_json()
        gates = {name: error is None for name, error in self.gates.items()}
        verification = None
        if self.verifications:
            from ..report.formats import verification_content

            verification = verification_content(self.verifications)
        written = {"output": self.written, "reports": self.reports}
        return {"report": report, "verification": verification, "gates": gates, **written}

    def row(self) -> dict[str, Any]:
        """The row for this MODEL among several, for ``delegraph_analysis.commands.several``: ``content`` and more."""
        error = None if self.error is None else describe_error(self.error)
        return {"model": self.model, "error": error, **self.content(), "seconds": round(self.seconds, 3)}

    def text(self) -> str:
        """The text that is printed for a single MODEL: its report, and the names of the files written."""
        from ..report.formats import TextReport

        lines = [] if self.report is None else [TextReport.render(self).rstrip()]
        lines += [f"wrote {self.written['path']} ({self.written['bytes']} bytes)"] if self.written else []
        lines += [f"wrote {', '.join(self.reports)}"] if len(self.reports) > 1 else []
        return "\n".join(lines)


@contextlib.contextmanager
def attempt(result: Attempt) -> Iterator[None]:
    """A block of work on a MODEL. An error raised inside is not passed on but stored as ``result.error``."""
    start = time.perf_counter()
    try:
        yield
    except DelegraphError as e:
        result.error = e
    except (Exception, SystemExit) as e:  # a defect, which must not keep other MODELs from being lowered
        result.error = defect(e)
        result.error.__cause__ = e
    result.seconds = time.perf_counter() - start
