"""Count refused operators over all models, by operator and reason.

The most frequent ones are the best candidates for an implementation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from delegraph.io.escape_for_terminal import printable

_LISTED = 4
"""The most models that the text of a refusal names."""


@dataclass
class Refusal:
    """A refusal of an operator for one reason, with its count and models."""

    backend: str
    operator: str
    reason: str
    hint: str
    count: int = 0
    models: list[str] = field(default_factory=list)

    def some_models(self) -> str:
        """Return the first models, and the number of further ones."""
        text = ", ".join(self.models[:_LISTED])
        more = len(self.models) - _LISTED
        return f"{text}, and {more} more" if more > 0 else text

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


def refusals_of(rows: Sequence[Mapping[str, Any]]) -> list[Refusal]:
    """Return the refusals of all rows, sorted by number of models, then by count.

    If a model has several rows, such as those of several quantizations, the largest
    count of them counts.
    """
    by_model: dict[tuple[str, str, str], dict[str, int]] = {}
    """Key of a refusal -> model -> count."""
    found: dict[tuple[str, str, str], Refusal] = {}
    for row in rows:
        counts: dict[tuple[str, str, str], int] = {}
        for cause in row["causes"]:
            key = cause["backend"], cause["operator"], cause["reason"]
            found.setdefault(key, Refusal(*key, cause["hint"] or ""))
            counts[key] = counts.get(key, 0) + cause["count"]
        for key, count in counts.items():
            models = by_model.setdefault(key, {})
            models[row["name"]] = max(models.get(row["name"], 0), count)
    for key, models in by_model.items():
        found[key].count = sum(models.values())
        found[key].models = list(models)
    return sorted(
        found.values(),
        key=lambda r: (-len(r.models), -r.count, r.backend, r.operator, r.reason),
    )


def refusals_text(rows: Sequence[Mapping[str, Any]], most: int | None = None) -> str:
    """Return lines for each refusal: count, reason, models and hint."""
    listed = refusals_of(rows)
    lines = []
    for refusal in listed[:most]:
        number = f"{len(refusal.models)} model{'s' if len(refusal.models) > 1 else ''}"
        lines.append(
            f"{refusal.count} x {refusal.operator}  {refusal.backend}: {refusal.reason}"
        )
        lines.append(f"  in {number}: {refusal.some_models()}")
        if refusal.hint:
            lines.append(f"  hint: {refusal.hint}")
    if most is not None and len(listed) > most:
        lines.append(f"and {len(listed) - most} more: --refusals lists all")
    return "\n".join(map(printable, lines))
