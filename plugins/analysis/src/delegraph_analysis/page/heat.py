"""How wrong the values of a program are, as its pictures show it."""

from __future__ import annotations

from collections.abc import Iterator

from ..accuracy.operators import OperatorStatistics, OperatorVerification, severity
from ..drawing import HEATS


def degree(row: OperatorStatistics) -> int:
    """How wrong a value is, from 1 for one that agrees to ``HEATS``."""
    differs, odd, ratio = severity(row)
    if differs:
        return HEATS if odd or ratio > 10 else HEATS - 1
    return 1 if ratio <= 0.1 else 2


class Errors:
    """Figures of operators by where they run and their names."""

    def __init__(self, found: OperatorVerification | None) -> None:
        self._rows: dict[tuple[str, str], OperatorStatistics] = {}
        for row in found.operators if found is not None else ():
            for key in ((row.where, row.node), (row.where, "")):
                self._rows[key] = max(self._rows.get(key, row), row, key=severity)

    def heat(self, where: str, node: str = "") -> int:
        """How wrong a value is, or the worst of a delegate: 0 where nothing was compared, else from 1 to ``HEATS``."""
        row = self._rows.get((where, node))
        return 0 if row is None else degree(row)

    def shown(self, where: str, node: str) -> Iterator[str]:
        """What its box says of it."""
        row = self._rows.get((where, node))
        if row is not None:
            yield f"error {row.figures.relative_error:.2g}"

    def lines(self, where: str, node: str) -> Iterator[str]:
        """What a tooltip says of it."""
        row = self._rows.get((where, node))
        if row is not None:
            remark = f" ({row.figures.remark})" if row.figures.remark else ""
            yield f"differs from float64 by {row.figures.relative_error:.2g} of the largest value{remark}"
            yield f"eager does by {row.eager_error:.2g}"
