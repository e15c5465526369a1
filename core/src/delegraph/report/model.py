"""What went where, and a readable reason for every operator that stayed behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..io.escape import printable
from ..program.lowered_module import Argument
from ..source import Source

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from ..program.delegates import DelegateInfo

SCHEMA = "delegraph.report/1"


@dataclass(frozen=True)
class DelegateRow:
    """One delegate: where it is called, whose it is, what it computes (operator -> count), its border and size.

    ``seconds``: what each phase of the lowering took for this delegate alone; empty where that was not measured.
    """

    method: str
    name: str
    backend: str
    producer: str
    operators: Mapping[str, int]
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    bytes: int
    facts: Mapping[str, str]
    seconds: Mapping[str, float] = field(default_factory=dict)

    def details(self) -> Iterator[str]:
        """What its one line leaves out: operators and border, a line each."""
        yield "operators: " + ", ".join(f"{n} x {op}" for op, n in by_count(self.operators))
        yield "inputs: " + (", ".join(map(str, self.inputs)) or "none")
        yield "outputs: " + (", ".join(map(str, self.outputs)) or "none")

    def __str__(self) -> str:
        border = f"{counted(len(self.inputs), 'input')}, {counted(len(self.outputs), 'output')}"
        facts = "".join(f", {k} {v}" for k, v in self.facts.items())
        size = f"{counted(sum(self.operators.values()), 'operator')}, {size_of(self.bytes)}, {border}{facts}"
        return f"{self.name}  {self.backend} ({self.producer})  {size}"


@dataclass(frozen=True)
class RefusalRow:
    """Calls of one operator that stayed on the host for one reason: how many, and the first of them."""

    method: str
    operator: str
    backend: str
    reason: str
    count: int
    source: Source | None

    def __str__(self) -> str:
        where = f"\n      first at {self.source}" if self.source else ""
        return f"{self.count} x {self.operator}  {self.backend}: {self.reason}{where}"


class Origin:
    """What the pictures of a report are drawn from, when somebody wants them. A pickled report goes without it."""

    def __init__(
        self,
        programs: Mapping[str, ExportedProgram] | None = None,
        delegates: Sequence[DelegateInfo] = (),
        reasons: Mapping[str, Reasons] | None = None,
        backends: Sequence[str] = (),
    ) -> None:
        self.programs, self.delegates = dict(programs or {}), tuple(delegates)
        self.reasons, self.backends = dict(reasons or {}), tuple(backends)

    def __deepcopy__(self, memo: Any) -> Origin:
        return self

    def __reduce__(self) -> tuple[type[Origin], tuple[()]]:
        return Origin, ()


@dataclass
class Report:
    """The account of one lowering; ``print`` it, or take ``to_json()`` or ``to_html()``.

    For its pictures it keeps the program (``origin``); ``report.origin = Origin()`` lets go of it.
    """

    delegates: list[DelegateRow] = field(default_factory=list)
    host: dict[str, dict[str, int]] = field(default_factory=dict)
    refusals: list[RefusalRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin, repr=False, compare=False)

    @property
    def host_operators(self) -> int:
        """How many calls the host runs, over all methods; moving values in and out of delegates does not count."""
        return sum(sum(counts.values()) for counts in self.host.values())

    @property
    def delegated_operators(self) -> int:
        return sum(sum(row.operators.values()) for row in self.delegates)

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values; the form is stable within its ``schema``."""
        return {
            "schema": SCHEMA,
            "delegated_operators": self.delegated_operators,
            "host_operators": self.host_operators,
            "delegates": [_delegate_json(row) for row in self.delegates],
            "host": {m: dict(sorted(counts.items())) for m, counts in self.host.items()},
            "refusals": [_refusal_json(row) for row in self.refusals],
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
        count = counted(len(self.delegates), "delegate")
        share = f"{self.delegated_operators} of {counted(total, 'operator')} delegated"
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
            asked = "" if refusals else f" {counted(sum(self.host[method].values()), 'operator')}; no backend was asked"
            yield f"  left to the host:{asked}"
        yield from (f"    {row}" for row in refusals)


def _delegate_json(row: DelegateRow) -> dict[str, Any]:
    border = {"inputs": [str(a) for a in row.inputs], "outputs": [str(a) for a in row.outputs]}
    named = {k: getattr(row, k) for k in ("method", "name", "backend", "producer", "bytes")}
    counts = {"operators": dict(sorted(row.operators.items())), "facts": dict(row.facts)}
    seconds = {k: round(v, 6) for k, v in row.seconds.items()}
    return {**named, **border, **counts, "seconds": seconds}


def _refusal_json(row: RefusalRow) -> dict[str, Any]:
    named = {k: getattr(row, k) for k in ("method", "operator", "backend", "reason", "count")}
    where = None if row.source is None else {"file": row.source.file, "line": row.source.line, "code": row.source.code}
    return {**named, "source": where}


Reasons = dict[tuple[str, int, str], str]
"""(Backend, debug handle, operator) -> why the backend refused it. The pieces of a call share its handle."""


def by_count(operators: Mapping[str, int]) -> list[tuple[str, int]]:
    """The most frequent first."""
    return sorted(operators.items(), key=lambda item: (-item[1], item[0]))


def _times(seconds: Mapping[str, float]) -> str:
    return "time: " + ", ".join(f"{phase} {duration(s)}" for phase, s in seconds.items())


def counted(count: int, noun: str) -> str:
    """``1 operator``, ``2 operators``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def size_of(count: int) -> str:
    """Bytes in the unit that people read."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return counted(count, "byte")


def duration(seconds: float) -> str:
    """In the unit that people read."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
