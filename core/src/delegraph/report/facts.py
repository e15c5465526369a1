"""Facts of a report: name, value and text form. Text, JSON and the page are generated
from these facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from delegraph_programs import Source


@dataclass(frozen=True)
class Fact:
    """One fact of a row or of a report, as text and pages show it.

    ``name``: the attribute with its value. ``label`` is the heading on the page; in
    text it precedes the entries. ``short`` writes the value in a few words, for the
    row's line or table cell. ``entries`` writes the value as several texts, for a line
    of its own in text or a list on the page. If a fact has ``short`` too, a cell shows
    the list; a long list is folded, and the short form unfolds it.
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

    ``KEYS``: the attributes in JSON. ``FACTS``: the facts in text and pages. A row
    writes other attributes in sentences.
    """

    KEYS: ClassVar[Sequence[str]] = ()
    FACTS: ClassVar[Sequence[Fact]] = ()

    def in_short(self) -> str:
        """Return the short forms (``Fact.short``) of the facts that have one, in one
        line; empty texts are left out.
        """
        texts = [fact.short(fact.of(self)) for fact in self.FACTS if fact.short]
        return ", ".join(filter(None, texts))

    def details(self) -> Iterator[str]:
        """Yield a line ``label: entries`` for each fact that has ``entries``.

        If the list of entries is empty, the line has "none" for a fact with a short
        form, and is left out for others.
        """
        for fact in self.FACTS:
            entries = fact.entries(fact.of(self)) if fact.entries else ()
            if entries or (fact.entries and fact.short):
                yield f"{fact.label}: {', '.join(entries) or 'none'}"

    def to_json(self) -> dict[str, Any]:
        """Return the attributes in ``KEYS`` as plain JSON values. The keys are stable
        within one ``schema`` of a report. Values under "seconds" are rounded to
        microseconds.
        """
        content = {name: as_json(getattr(self, name)) for name in self.KEYS}
        for phase, seconds in content.get("seconds", {}).items():
            content["seconds"][phase] = round(seconds, 6)
        return content


def as_json(value: Any) -> Any:
    """Return a value of a row as plain JSON values. An object of another type becomes
    its text.
    """
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
    """Return (operator, count) pairs, the most frequent operator first; equal counts
    are sorted by name.
    """
    return sorted(operators.items(), key=lambda item: (-item[1], item[0]))


def list_counts(operators: Mapping[str, int]) -> list[str]:
    """Return a text such as ``2 x aten.add.Tensor`` for each operator, the most
    frequent first.
    """
    return [f"{n} x {op}" for op, n in most_frequent(operators)]


def pluralize(count: int, noun: str) -> str:
    """Return ``1 operator`` or ``2 operators``, for a count and a noun in the singular."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_size(count: int) -> str:
    """Return a number of bytes as text, in the largest unit that is not larger than the
    number: ``6.0 kB``. The units are byte, kB, MB and GB.
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return pluralize(count, "byte")


def format_seconds(seconds: float) -> str:
    """Return a time as text: ``1.20 s``, or milliseconds for less than one second:
    ``12.0 ms``.
    """
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def list_amounts(amounts: Mapping[str, float]) -> list[str]:
    """Return a text such as ``cycles 1,200`` for each amount; floats are rounded to
    four significant digits.
    """
    return [
        f"{name} {amount:,}" if isinstance(amount, int) else f"{name} {amount:.4g}"
        for name, amount in amounts.items()
    ]


def list_seconds(seconds: Mapping[str, float]) -> list[str]:
    """Return a text such as ``export 1.20 s`` for each phase."""
    return [f"{phase} {format_seconds(s)}" for phase, s in seconds.items()]
