"""``Report``: what went where in a lowering, and a readable reason for every operator that stayed behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..io.escape import printable
from .rows import SCHEMA, DelegateRow, RefusalRow, ReportOrigin, format_seconds, pluralize


@dataclass
class Report:
    """What one lowering did; ``print`` it, or take ``to_json()`` or ``to_html()``.

    For its pictures it keeps the programs alive (``origin``); ``report.origin = ReportOrigin()`` releases them.
    """

    delegates: list[DelegateRow] = field(default_factory=list)
    host: dict[str, dict[str, int]] = field(default_factory=dict)
    refusals: list[RefusalRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    origin: ReportOrigin = field(default_factory=ReportOrigin, repr=False, compare=False)

    @property
    def host_operators(self) -> int:
        """How many calls the host runs, over all methods; moving values in and out of delegates does not count."""
        return sum(sum(counts.values()) for counts in self.host.values())

    @property
    def delegated_operators(self) -> int:
        return sum(row.operator_count for row in self.delegates)

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values; the form is stable within its ``schema``."""
        return {
            "schema": SCHEMA,
            "delegated_operators": self.delegated_operators,
            "host_operators": self.host_operators,
            "delegates": [row.to_json() for row in self.delegates],
            "host": {m: dict(sorted(counts.items())) for m, counts in self.host.items()},
            "refusals": [row.to_json() for row in self.refusals],
            "notes": list(self.notes),
            "seconds": {k: round(v, 6) for k, v in self.seconds.items()},
        }

    def to_html(self) -> str:
        """As one page with a picture of each method; it refers to nothing outside, and runs no script."""
        from .html import page

        return page(self)

    def to_text(self, verbose: bool = False) -> str:
        """As ``print`` shows it; ``verbose`` adds operators, border and time of each delegate.

        What does not print, such as what moves a terminal's cursor, is shown by its escape.
        """
        return printable("\n".join(self._lines(verbose)), kept="\n")

    def __str__(self) -> str:
        return self.to_text()

    def summary(self) -> str:
        """How much of the program is delegated, in one line."""
        total = self.delegated_operators + self.host_operators
        count = pluralize(len(self.delegates), "delegate")
        share = f"{self.delegated_operators} of {pluralize(total, 'operator')} delegated"
        return f"{share}, in {count}; {self.host_operators} on the host"

    def _lines(self, verbose: bool) -> Iterator[str]:
        yield self.summary()
        for method in self.host:
            yield from self._method(method, verbose)
        yield from (f"note: {text}" for text in self.notes)
        yield _times(self.seconds)

    def _method(self, method: str, verbose: bool) -> Iterator[str]:
        yield f"{method}:"
        for row in (row for row in self.delegates if row.method == method):
            yield f"  {row}"
            if verbose:
                yield from (f"      {line}" for line in row.details())
                yield from [f"      {_times(row.seconds)}"] if row.seconds else []
        refusals = [row for row in self.refusals if row.method == method]
        if self.host[method]:
            operators = pluralize(sum(self.host[method].values()), "operator")
            yield "  left to the host:" + ("" if refusals else f" {operators}; no backend was asked")
        yield from (f"    {row}" for row in refusals)


def _times(seconds: Mapping[str, float]) -> str:
    return "time: " + ", ".join(f"{phase} {format_seconds(s)}" for phase, s in seconds.items())
