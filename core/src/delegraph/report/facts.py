"""Facts of a report: name, value and text form. Text, JSON and the page are generated
from them.

Each kind of row lists its facts in ``FACTS`` (rows.py), and so does the whole report
(model.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

Plain = Callable[[Any], Any]
"""A function that converts a value to a JSON value."""


@dataclass(frozen=True)
class Fact:
    """One fact of a row or of a report, and how text and pages show it.

    ``name`` is the key in JSON, and ``plain`` converts the value for it. The value is ``value(row)``, or the row's attribute
    ``name`` if ``value`` is None. ``label`` is the heading on the page; in text it
    precedes the entries. ``short`` writes the value in a few words, for the row's line
    or table cell. ``entries`` writes the value as several texts, for a line of its own
    in text or a list on the page. If a fact has ``short`` too, a cell shows the list,
    folded behind the short form if it is long. A fact without ``short`` and ``entries``
    is in JSON only, unless the row writes it in a sentence. ``first``: text and pages
    show the fact before the others, whatever its position in JSON.
    """

    name: str
    plain: Plain
    label: str = ""
    short: Callable[[Any], str] | None = None
    entries: Callable[[Any], Sequence[str]] | None = None
    first: bool = False
    value: Callable[[Any], Any] | None = None

    def of(self, row: Any) -> Any:
        """Return the value of this fact for ``row``."""
        return getattr(row, self.name) if self.value is None else self.value(row)


class Told:
    """Base of rows and reports: writes the facts in ``FACTS`` as text and JSON.

    The order of ``FACTS`` is the order of keys in JSON, which must not change.
    """

    FACTS: ClassVar[Sequence[Fact]]

    @classmethod
    def readable(cls) -> list[Fact]:
        """Return the facts that have ``short`` or ``entries``, in the order in which
        text and pages show them.
        """
        # those marked as ``first`` come first (False sorts before True); the others
        # keep their order
        return sorted(
            (fact for fact in cls.FACTS if fact.short or fact.entries),
            key=lambda fact: not fact.first,
        )

    def in_short(self) -> str:
        """Return the short forms (``Fact.short``) of the facts that have one, in one
        line; empty texts are left out.
        """
        return ", ".join(
            filter(
                None,
                (fact.short(fact.of(self)) for fact in self.readable() if fact.short),
            )
        )

    def details(self) -> Iterator[str]:
        """A line ``label: entries`` for each fact that has ``entries``.

        If the list of entries is empty, the line says "none" for a fact with a short
        form, and is left out for others.
        """
        for fact in self.readable():
            entries = fact.entries(fact.of(self)) if fact.entries else ()
            if entries or (fact.entries and fact.short):
                yield f"{fact.label}: {', '.join(entries) or 'none'}"

    def to_json(self) -> dict[str, Any]:
        """Return all facts by name, as plain JSON values. The keys are stable within
        one ``schema`` of a report.
        """
        return {fact.name: fact.plain(fact.of(self)) for fact in self.FACTS}


def optional(plain: Plain) -> Plain:
    """Return ``plain`` for values that may be None (null in JSON)."""
    return lambda value: None if value is None else plain(value)


def array_of(plain: Plain) -> Plain:
    """Return a function for lists whose elements ``plain`` converts."""
    return lambda values: [plain(value) for value in values]


def by_name(plain: Plain) -> Plain:
    """Return a function for mappings from names to values that ``plain`` converts."""
    return lambda values: {str(name): plain(v) for name, v in values.items()}


def row_as_json(row: Told) -> dict[str, Any]:
    """Convert a row."""
    return row.to_json()


TEXTS = array_of(str)
AMOUNTS = by_name(lambda amount: amount)
SECONDS = by_name(lambda seconds: round(seconds, 6))


def sorted_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Convert name -> count; the names are sorted."""
    return dict(sorted(counts.items()))


def most_frequent(operators: Mapping[str, int]) -> list[tuple[str, int]]:
    """(operator, count) pairs, the most frequent operator first; equal counts are
    sorted by name.
    """
    return sorted(operators.items(), key=lambda item: (-item[1], item[0]))


def list_counts(operators: Mapping[str, int]) -> list[str]:
    """Return a text such as ``2 x aten.add.Tensor`` for each operator, the most
    frequent first.
    """
    return [f"{n} x {op}" for op, n in most_frequent(operators)]


def pluralize(count: int, noun: str) -> str:
    """``1 operator`` or ``2 operators``, for a count and a noun in the singular."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_size(count: int) -> str:
    """Return a number of bytes as text, in the largest of byte, kB, MB and GB that does
    not exceed it: ``6.0 kB``.
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return pluralize(count, "byte")


def format_seconds(seconds: float) -> str:
    """Return a time as text: ``1.20 s``, or milliseconds if it is below one second:
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
