"""Writes the values of a report as text and JSON.

A row of a report lists its values as ``Fact`` objects. Text and pages are generated
from these, and JSON from the names in ``KEYS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from delegraph_programs import Source


@dataclass(frozen=True)
class Fact:
    """How text and pages show one attribute of a row or of a report.

    ``name``: the attribute. ``label``: the heading on the page; in text it precedes the
    entries. ``short`` writes the value in a few words, for the row's line or table
    cell: "3 inputs". ``entries`` writes the value as several texts, for a line of its
    own in text or a list on the page. If a fact has both, the page shows the list in
    the cell; a long list is folded below the short form.
    """

    name: str
    label: str
    short: Callable[[Any], str] | None = None
    entries: Callable[[Any], Sequence[str]] | None = None

    def of(self, row: Any) -> Any:
        """Return the value of this fact for ``row``."""
        return getattr(row, self.name)


class WithFacts:
    """Base of rows and reports: writes them as text and JSON.

    ``KEYS``: the attributes in JSON. ``FACTS``: the attributes in text and pages. The
    ``__str__`` of a row adds other attributes.
    """

    KEYS: ClassVar[Sequence[str]] = ()
    FACTS: ClassVar[Sequence[Fact]] = ()

    def in_short(self) -> str:
        """Return the short forms of the facts in one line. Empty texts are left out."""
        texts = [fact.short(fact.of(self)) for fact in self.FACTS if fact.short]
        return ", ".join(filter(None, texts))

    def details(self) -> Iterator[str]:
        """Yield a line ``label: entries`` for each fact that has ``entries``.

        Without entries, the line is left out, or has "none" if the fact also has a
        short form.
        """
        for fact in self.FACTS:
            if fact.entries:
                entries = fact.entries(fact.of(self))
                if entries or fact.short:
                    yield f"{fact.label}: {', '.join(entries) or 'none'}"

    def to_json(self) -> dict[str, Any]:
        """Return the attributes in ``KEYS`` as plain JSON values.

        The keys are stable within one ``schema`` of a report. Values under "seconds"
        are rounded to microseconds.
        """
        content = {name: as_json(getattr(self, name)) for name in self.KEYS}
        for phase, seconds in content.get("seconds", {}).items():
            content["seconds"][phase] = round(seconds, 6)
        return content


def as_json(value: Any) -> Any:
    """Return a value of a row for JSON. Objects of other types become text."""
    if isinstance(value, WithFacts):
        return value.to_json()
    if isinstance(value, Source):
        names = ("file", "line", "code", "module")
        return {name: getattr(value, name) for name in names}
    if isinstance(value, Mapping):
        return {str(name): as_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    return value if isinstance(value, int | float | None) else str(value)


def most_frequent(operators: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return (operator, count) pairs, the most frequent operator first.

    Operators with equal counts are sorted by name.
    """
    return sorted(operators.items(), key=lambda item: (-item[1], item[0]))


def list_counts(operators: Mapping[str, int]) -> list[str]:
    """Return ``2 x aten.add.Tensor`` for each operator, the most frequent first."""
    return [f"{n} x {op}" for op, n in most_frequent(operators)]


def pluralize(count: int, noun: str) -> str:
    """Return ``1 operator`` or ``2 operators``; ``noun``: the singular."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_size(count: int) -> str:
    """Return a number of bytes as text in bytes, kB, MB or GB: 6000 -> ``6.0 kB``."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return pluralize(count, "byte")


def format_seconds(seconds: float) -> str:
    """Return a time as text: ``1.20 s``, or ``12.0 ms`` for less than one second."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def list_amounts(amounts: Mapping[str, float]) -> list[str]:
    """Return a text for each amount, such as ``cycles 1,200``.

    Floats are written with four significant digits.
    """
    return [
        f"{name} {amount:,}" if isinstance(amount, int) else f"{name} {amount:.4g}"
        for name, amount in amounts.items()
    ]


def list_seconds(seconds: Mapping[str, float]) -> list[str]:
    """Return ``export 1.20 s`` for each phase."""
    return [f"{phase} {format_seconds(s)}" for phase, s in seconds.items()]
