"""Refuses operators that attribute tables of TOSA 0.80 cannot express.

Imported when a target or a file names that version.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.graph import Operator
from ..ir.types import NanMode
from .levels import Breach, Level
from .operator_table import Row


class OlderLevel(Level):
    """A level of 0.80, with rules of that version that its table does not have."""

    def exceeded(self, operator: Operator, row: Row) -> Iterator[Breach]:
        """Yield the limits that ``operator`` exceeds, and attributes that 0.80 lacks."""
        yield from super().exceeded(operator, row)
        why = _why_not_expressible(operator)
        if why is not None:
            yield "operator-version", f"TOSA {operator.name}: {why}"


def _why_not_expressible(operator: Operator) -> str | None:
    """Return why 0.80 cannot express an attribute of 1.0, or None."""
    attributes = vars(operator)
    if attributes.get("nan_mode") is NanMode.IGNORE:
        dtype = operator.outputs[0].dtype
        if dtype.name.startswith(("FP", "BF")):
            return "TOSA 0.80 always propagates NaN; nan_mode IGNORE needs TOSA 1.0"
    if operator.name == "RFFT2D" and attributes.get("local_bound"):
        return "RFFT2D of TOSA 0.80 has no local_bound"
    return None
