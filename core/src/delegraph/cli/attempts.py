"""The result of ``delegraph lower``, as JSON and as text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..report.formats import LoweringResult, TextReport, verification_content


@dataclass
class Attempt(LoweringResult):
    """The results so far.

    ``bytes``: size of the saved program ``output``. ``reports``: paths of the reports.
    """

    bytes: int = 0
    reports: list[str] = field(default_factory=list)

    def content(self) -> dict[str, Any]:
        """Return the fields of the JSON form ``delegraph.lower/1``, which a failed
        command adds to ``delegraph.error/1``.
        """
        report = None if self.report is None else self.report.to_json()
        gates = {name: error is None for name, error in self.gates.items()}
        verification = verification_content(self.verifications)
        written = (
            None
            if self.output is None
            else {"path": str(self.output), "bytes": self.bytes}
        )
        outcome = {"report": report, "verification": verification, "gates": gates}
        return {**outcome, "output": written, "reports": self.reports}

    def text(self) -> str:
        """Return the text that is printed: its report, and the names of the files
        written.
        """
        lines = [] if self.report is None else [TextReport.render(self).rstrip()]
        lines += (
            [] if self.output is None else [f"wrote {self.output} ({self.bytes} bytes)"]
        )
        # a single report is at the path that the user gave
        lines += [f"wrote {', '.join(self.reports)}"] if len(self.reports) > 1 else []
        return "\n".join(lines)
