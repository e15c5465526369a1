"""How one check ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Figures = Mapping[str, Any]


class Status(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class CheckResult:
    """How one check ended: ``message`` is the failure or the reason for skipping,
    ``figures`` what was counted.

    ``warnings`` are remarks that do not change the verdict.
    """

    name: str
    status: Status
    message: str = ""
    figures: Figures = field(default_factory=dict)
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values."""
        plain = {
            "name": self.name,
            "status": self.status.value,
            "message": self.message,
        }
        counted = {"figures": dict(self.figures), "seconds": round(self.seconds, 3)}
        return {**plain, **counted, "warnings": list(self.warnings)}

    def summary(self) -> str:
        """One line: figures, or the first line of the message."""
        figures = ", ".join(
            f"{k.replace('_', ' ')} {_shown(v)}" for k, v in self.figures.items()
        )
        return self.message.partition("\n")[0] or figures


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
