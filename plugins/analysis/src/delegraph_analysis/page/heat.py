"""Color pictures of a program by the errors of values, or by the time of operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ..accuracy.operators import OperatorStatistics, OperatorVerification, severity
from ..drawing import HEATS
from ..profiling import Part, ProgramProfile

_SHARES = (0.01, 0.05, 0.2)
"""Least shares of a call's time for the second, third and last color."""
SHARES = ("less than 1 % of the call", "1 % or more", "5 % or more", "20 % or more")
"""The meaning of the colors of times."""
_LISTED = 4
"""The most parts of a call in an operator's tooltip."""


def degree(row: OperatorStatistics) -> int:
    """Return the degree of a value's error: 1 or 2 if it agrees, else up to ``HEATS``."""
    error = severity(row)
    if error.differs:
        return HEATS if error.mismatched or error.ratio > 10 else HEATS - 1
    return 1 if error.ratio <= 0.1 else 2


class Heat(Protocol):
    """Figures of operators, by the place that runs them and the names of their nodes.

    ``where``: see ``Part.where``. ``node`` is "" for a whole delegate.
    """

    def heat(self, where: str, node: str = "") -> int:
        """Return the color of an operator or delegate: 0 if unknown, else 1 to
        ``HEATS``.
        """

    def shown(self, where: str, node: str) -> Iterator[str]:
        """Return the text in the operator's box."""

    def lines(self, where: str, node: str) -> Iterator[str]:
        """Return the text in the operator's tooltip."""


class Errors:
    """Errors of values. A delegate has the worst error of its values."""

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
        # the box of a delegate has only the colour of its error
        if row is not None and node:
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
    """The times of operators.

    Fused operators share the time and the color of the fusion.
    """

    def __init__(self, profile: ProgramProfile) -> None:
        self._total = profile.total
        self._parts: dict[tuple[str, str], list[Part]] = {}
        for part in profile.parts:
            for node in (*part.nodes, ""):
                self._parts.setdefault((part.where, node), []).append(part)

    def heat(self, where: str, node: str = "") -> int:
        parts = self._parts.get((where, node))
        if not parts:
            return 0
        return 1 + sum(self._share(parts) >= least for least in _SHARES)

    def shown(self, where: str, node: str) -> Iterator[str]:
        parts = self._parts.get((where, node))
        if parts:
            together = max(len(part.nodes) for part in parts) if node else 1
            shared = f", {together} operators together" if together > 1 else ""
            seconds = sum(part.seconds for part in parts)
            yield f"{1000 * seconds:.3g} ms, {self._share(parts):.1%}{shared}"

    def lines(self, where: str, node: str) -> Iterator[str]:
        parts = self._parts.get((where, node), [])
        for part in parts[:_LISTED]:
            others = len(part.nodes) - 1
            shared = f" for this and {others} more" if others > 0 else ""
            yield f"{part.what}: {1000 * part.seconds:.3g} ms{shared}"
        rest = parts[_LISTED:]  # an operator in a loop body has many parts
        if rest:
            seconds = sum(part.seconds for part in rest)
            yield f"{len(rest)} times more: {1000 * seconds:.3g} ms"

    def _share(self, parts: list[Part]) -> float:
        """Return the share of the call's time."""
        return sum(part.seconds for part in parts) / self._total
