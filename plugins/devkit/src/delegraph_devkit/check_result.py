"""Hold the result of one check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Figures = Mapping[str, Any]


class Status(StrEnum):
    """The verdict of a check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    ``message`` is the failure or the reason for skipping, ``figures`` are counts.
    ``warnings`` do not change the verdict.
    """

    name: str
    status: Status
    message: str = ""
    figures: Figures = field(default_factory=dict)
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of plain values."""
        return {
            "name": self.name,
            "status": self.status.value,
            "message": self.message,
            "figures": dict(self.figures),
            "seconds": round(self.seconds, 3),
            "warnings": list(self.warnings),
        }

    def summary(self) -> str:
        """Return one line: the first line of the message, or the figures."""
        if self.message:
            return self.message.partition("\n")[0]
        return ", ".join(
            f"{name.replace('_', ' ')} {_shown(value)}"
            for name, value in self.figures.items()
        )


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
