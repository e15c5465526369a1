"""A fact of a report: its name, its type, and how it reads. Text, JSON, docs/schema.json and the page follow from it.

Each kind of row has the list of its facts, ``FACTS``, in rows.py; that of the whole report is in model.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Kind:
    """A type of facts. ``plain`` makes a JSON value of a fact, and ``schema`` is the JSON schema of that."""

    schema: Mapping[str, Any]
    plain: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True)
class Fact:
    """One fact of a row or of a report: its attribute ``name``, unless ``value`` computes it.

    ``label`` is its heading on the page, and stands before ``entries`` in text. ``short`` writes the value in a few
    words, for the row's line or table cell. ``entries`` writes it as several texts, for a line of its own, or a list on
    the page; with both, a cell shows the entries, folded behind ``short`` if they are many. A fact with neither is only
    in JSON, or in a sentence that the row writes. ``first``: it is read before the others, wherever it stands in JSON.
    """

    name: str
    kind: Kind
    label: str = ""
    short: Callable[[Any], str] | None = None
    entries: Callable[[Any], Sequence[str]] | None = None
    first: bool = False
    value: Callable[[Any], Any] | None = None

    def of(self, row: Any) -> Any:
        """The fact of ``row``."""
        return getattr(row, self.name) if self.value is None else self.value(row)


class Told:
    """Something that is told by its facts. The order of ``FACTS`` is that of JSON, where nothing may move."""

    FACTS: ClassVar[Sequence[Fact]]

    @classmethod
    def readable(cls) -> list[Fact]:
        """The facts that text and pages show by themselves, in reading order."""
        return sorted((fact for fact in cls.FACTS if fact.short or fact.entries), key=lambda fact: not fact.first)

    def in_short(self) -> str:
        """The facts in one line."""
        return ", ".join(filter(None, (fact.short(fact.of(self)) for fact in self.readable() if fact.short)))

    def details(self) -> Iterator[str]:
        """A line for each fact with entries. If there are none, a fact that ``in_short`` counts says "none"."""
        for fact in self.readable():
            entries = fact.entries(fact.of(self)) if fact.entries else ()
            if entries or (fact.entries and fact.short):
                yield f"{fact.label}: {', '.join(entries) or 'none'}"

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values; the form is stable within the ``schema`` of a report."""
        return {fact.name: fact.kind.plain(fact.of(self)) for fact in self.FACTS}


def optional(kind: Kind) -> Kind:
    """A kind whose values may be None, null in JSON."""
    return Kind({"anyOf": [kind.schema, {"type": "null"}]}, lambda value: None if value is None else kind.plain(value))


def array_of(kind: Kind) -> Kind:
    """A list of values of a kind."""
    return Kind({"type": "array", "items": kind.schema}, lambda values: [kind.plain(v) for v in values])


def by_name(kind: Kind) -> Kind:
    """A mapping from names to values of a kind."""
    schema = {"type": "object", "additionalProperties": kind.schema}
    return Kind(schema, lambda values: {str(name): kind.plain(v) for name, v in values.items()})


def row_as(definition: str, plain: Callable[[Any], Any] = lambda row: row.to_json()) -> Kind:
    """A row. ``definition`` is the name of its form in docs/schema.json."""
    return Kind({"$ref": f"#/$defs/{definition}"}, plain)


TEXT = Kind({"type": "string"}, str)
COUNT = Kind({"type": "integer", "minimum": 0})
TEXTS = array_of(TEXT)
COUNTS = Kind(by_name(COUNT).schema, lambda counts: dict(sorted(counts.items())))
AMOUNTS = by_name(Kind({"type": "number"}))
SECONDS = by_name(Kind({"type": "number", "minimum": 0}, lambda seconds: round(seconds, 6)))


def most_frequent(operators: Mapping[str, int]) -> list[tuple[str, int]]:
    """Operators with their counts, the most frequent first."""
    return sorted(operators.items(), key=lambda item: (-item[1], item[0]))


def list_counts(operators: Mapping[str, int]) -> list[str]:
    """``2 x aten.add.Tensor`` and so on, the most frequent operator first."""
    return [f"{n} x {op}" for op, n in most_frequent(operators)]


def pluralize(count: int, noun: str) -> str:
    """``1 operator``, ``2 operators``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_size(count: int) -> str:
    """A number of bytes, in the largest unit of which there is at least one."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return pluralize(count, "byte")


def format_seconds(seconds: float) -> str:
    """A time: in seconds from one second on, else in milliseconds."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def list_amounts(amounts: Mapping[str, float]) -> list[str]:
    """``cycles 1,200``; what is no integer has four digits."""
    return [
        f"{name} {amount:,}" if isinstance(amount, int) else f"{name} {amount:.4g}" for name, amount in amounts.items()
    ]


def list_seconds(seconds: Mapping[str, float]) -> list[str]:
    """``export 1.20 s`` and so on, in the order of the phases."""
    return [f"{phase} {format_seconds(s)}" for phase, s in seconds.items()]
