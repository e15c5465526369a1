"""The rows of a report, what its pictures are drawn from, and how it shows numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..program.lowered_module import Argument
from ..source import Source

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from ..program.delegates import DelegateInfo

SCHEMA = "delegraph.report/1"

Reasons = dict[tuple[str, int, str], str]
"""(Backend, debug handle, operator) -> why the backend refused it. What a call is decomposed to shares its handle."""


@dataclass(frozen=True)
class DelegateRow:
    """One delegate: where it is called, its backend, what it computes (operator -> count), its border and size.

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

    @property
    def operator_count(self) -> int:
        return sum(self.operators.values())

    def details(self) -> Iterator[str]:
        """Lines on operators and border, which the one-line form leaves out."""
        yield "operators: " + ", ".join(f"{n} x {op}" for op, n in most_frequent(self.operators))
        yield "inputs: " + (", ".join(map(str, self.inputs)) or "none")
        yield "outputs: " + (", ".join(map(str, self.outputs)) or "none")

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values."""
        border = {"inputs": [str(a) for a in self.inputs], "outputs": [str(a) for a in self.outputs]}
        named = {k: getattr(self, k) for k in ("method", "name", "backend", "producer", "bytes")}
        counts = {"operators": dict(sorted(self.operators.items())), "facts": dict(self.facts)}
        return {**named, **border, **counts, "seconds": {k: round(v, 6) for k, v in self.seconds.items()}}

    def __str__(self) -> str:
        border = f"{pluralize(len(self.inputs), 'input')}, {pluralize(len(self.outputs), 'output')}"
        facts = "".join(f", {k} {v}" for k, v in self.facts.items())
        size = f"{pluralize(self.operator_count, 'operator')}, {format_size(self.bytes)}, {border}{facts}"
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

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values."""
        named = {k: getattr(self, k) for k in ("method", "operator", "backend", "reason", "count")}
        source = self.source
        return {**named, "source": source and {"file": source.file, "line": source.line, "code": source.code}}

    def __str__(self) -> str:
        where = f"\n      first at {self.source}" if self.source else ""
        return f"{self.count} x {self.operator}  {self.backend}: {self.reason}{where}"


class ReportOrigin:
    """The programs that the pictures of a report are drawn from, on demand. A pickled report goes without them."""

    def __init__(
        self,
        programs: Mapping[str, ExportedProgram] | None = None,
        delegates: Sequence[DelegateInfo] = (),
        reasons: Mapping[str, Reasons] | None = None,
        backends: Sequence[str] = (),
    ) -> None:
        self.programs, self.delegates = dict(programs or {}), tuple(delegates)
        self.reasons, self.backends = dict(reasons or {}), tuple(backends)

    def __deepcopy__(self, memo: Any) -> ReportOrigin:
        return self

    def __reduce__(self) -> tuple[type[ReportOrigin], tuple[()]]:
        return ReportOrigin, ()


def most_frequent(operators: Mapping[str, int]) -> list[tuple[str, int]]:
    """Operators with their counts, the most frequent first."""
    return sorted(operators.items(), key=lambda item: (-item[1], item[0]))


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
    """A time, in seconds from one second on and in milliseconds below."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
