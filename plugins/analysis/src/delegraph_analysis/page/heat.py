"""What the pictures of a program show by colours: how wrong its values are, or how much
of a call's time is theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ..accuracy.operators import OperatorStatistics, OperatorVerification, severity
from ..drawing import HEATS
from ..profiling import Part, ProgramProfile

_SHARES = (0.01, 0.05, 0.2)
"""Shares of a call from which on an operator has the second colour, the third and the
last.
"""
SHARES = ("less than 1 % of the call", "1 % or more", "5 % or more", "20 % or more")
"""What the colours of times mean."""
_LISTED = 4
"""Parts of a call that the tooltip of an operator lists."""


def degree(row: OperatorStatistics) -> int:
    """How wrong a value is, from 1 for one that agrees to ``HEATS``."""
    differs, odd, ratio = severity(row)
    if differs:
        return HEATS if odd or ratio > 10 else HEATS - 1
    return 1 if ratio <= 0.1 else 2


class Heat(Protocol):
    """Figures of operators by ``where`` they run and the names of their nodes."""

    def heat(self, where: str, node: str = "") -> int:
        """The colour of an operator, or of a whole delegate: 0 where nothing is known,
        else from 1 to ``HEATS``.
        """

    def shown(self, where: str, node: str) -> Iterator[str]:
        """What its box says of it."""

    def lines(self, where: str, node: str) -> Iterator[str]:
        """What a tooltip says of it."""


class Errors:
    """How wrong values are; the worst of a delegate's is the delegate's."""

    def __init__(self, found: OperatorVerification | None) -> None:
        self._rows: dict[tuple[str, str], OperatorStatistics] = {}
        for row in found.operators if found is not None else ():
            for key in ((row.where, row.node), (row.where, "")):
                self._rows[key] = max(self._rows.get(key, row), row, key=severity)

    def heat(self, where: str, node: str = "") -> int:
        row = self._rows.get((where, node))
        return 0 if row is None else degree(row)

    def shown(self, where: str, node: str) -> Iterator[str]:
        row = self._rows.get((where, node))
        if row is not None and node:  # of a whole delegate its colour says enough
            yield f"error {row.figures.relative_error:.2g}"

    def lines(self, where: str, node: str) -> Iterator[str]:
        row = self._rows.get((where, node))
        if row is not None:
            remark = f" ({row.figures.remark})" if row.figures.remark else ""
            yield (
                f"differs from float64 by {row.figures.relative_error:.2g} of the"
                f" largest value{remark}"
            )
            yield f"eager does by {row.eager_error:.2g}"


class Times:
    """How long operators take. What several were fused into colours each of them, and
    each says so.
    """

    def __init__(self, profile: ProgramProfile) -> None:
        self._total = profile.total
        self._parts: dict[tuple[str, str], list[Part]] = {}
        for part in profile.parts:
            for node in (*part.nodes, ""):
                self._parts.setdefault((part.where, node), []).append(part)

    def heat(self, where: str, node: str = "") -> int:
        parts = self._parts.get((where, node))
        return 1 + sum(self._share(parts) >= least for least in _SHARES) if parts else 0

    def shown(self, where: str, node: str) -> Iterator[str]:
        parts = self._parts.get((where, node))
        if parts:
            together = max(len(part.nodes) for part in parts) if node else 1
            shared = f", {together} operators together" if together > 1 else ""
            yield (
                f"{1000 * sum(p.seconds for p in parts):.3g} ms,"
                f" {self._share(parts):.1%}{shared}"
            )

    def lines(self, where: str, node: str) -> Iterator[str]:
        parts = self._parts.get((where, node), [])
        for part in parts[:_LISTED]:
            others = len(part.nodes) - 1
            shared = f" for this and {others} more" if others > 0 else ""
            yield f"{part.what}: {1000 * part.seconds:.3g} ms{shared}"
        if rest := parts[_LISTED:]:  # iterations of a loop
            yield (
                f"{len(rest)} times more:"
                f" {1000 * sum(part.seconds for part in rest):.3g} ms"
            )

    def _share(self, parts: list[Part]) -> float:
        return sum(part.seconds for part in parts) / self._total
