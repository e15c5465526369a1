"""The rows of a report, what its pictures are drawn from, and how it shows numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..delegates.lowered_module import Argument
from ..partitioner.contract import Reason
from ..source import Source
from .notation import Notation

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from ..delegates.delegates import DelegateInfo

SCHEMA = "delegraph.report/1"

Reasons = dict[tuple[str, int, str], str]
"""(Backend, debug handle, operator) -> why the backend refused it, which may be a ``Reason``.

What a call is decomposed to shares its handle.
"""
WhatIf = Callable[[str, str, Reason], "frozenset[int] | None"]
"""(Method, backend, reason) -> handles that the backend refuses where the reason does not hold; None: not known."""


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
    """Operators of one kind that stayed on the host for one reason: how many, and the first of them."""

    method: str
    operator: str
    backend: str
    reason: str
    count: int
    source: Source | None

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values."""
        named = {k: getattr(self, k) for k in ("method", "operator", "backend", "reason", "count")}
        return {**named, "source": _place(self.source)}


@dataclass(frozen=True)
class Cause:
    """What keeps operators from a backend, and all operators that it keeps, a row for each kind and reason.

    ``reason`` is that of the operator at which it begins; what only passes it on has its own in ``refusals``. ``hint``:
    what to do about it, if the backend says so. ``behind``: the operator that this comes from, if that is left to the
    host for a cause of its own; else "". ``frees``: how many operators the backend would take without this cause; None
    if it was not asked. ``handles``: the debug handles of those that it keeps, in the order of the program.
    """

    method: str
    backend: str
    reason: str
    hint: str
    behind: str
    refusals: tuple[RefusalRow, ...]
    frees: int | None = None
    handles: tuple[int, ...] = field(default=(), repr=False)

    @property
    def count(self) -> int:
        """How many operators it keeps on the host."""
        return sum(row.count for row in self.refusals)

    @property
    def operators(self) -> dict[str, int]:
        """Operator -> how many of it."""
        total: Counter[str] = Counter()
        for row in self.refusals:
            total[row.operator] += row.count
        return dict(total)

    @property
    def source(self) -> Source | None:
        """The first line of the user's program that is concerned."""
        return next((row.source for row in self.refusals if row.source), None)

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values."""
        named = {k: getattr(self, k) for k in ("method", "backend", "reason", "hint", "behind", "count", "frees")}
        return {**named, "operators": dict(sorted(self.operators.items())), "source": _place(self.source)}

    @property
    def remarks(self) -> list[str]:
        """What there is to say besides operators and reason, a line each."""
        remarks = [f"follows from {self.behind}, which is left to the host itself"] if self.behind else []
        remarks += [f"hint: {self.hint}"] if self.hint else []
        if self.frees is not None:
            alone = "" if self.frees else ", whose next reason shows then"
            behind = pluralize(self.frees, "operator") + ", with those behind them"
            taken = f"{self.frees} of {self.count}" if self.frees <= self.count else behind
            remarks.append(f"without that {self.backend} takes {taken}{alone}")
        return remarks

    def __str__(self) -> str:
        listed = most_frequent(self.operators)
        shown = f"{listed[0][1]} x {listed[0][0]}" if len(listed) == 1 else pluralize(self.count, "operator")
        lines = [f"first at {self.source}"] if self.source else []
        lines += self.remarks
        if len(listed) > 1:
            lines.append(", ".join(f"{n} x {op}" for op, n in listed))
        return "\n      ".join([f"{shown}  {self.backend}: {self.reason}", *lines])


def _place(source: Source | None) -> dict[str, Any] | None:
    return None if source is None else {"file": source.file, "line": source.line, "code": source.code}


@dataclass
class Rows:
    """All rows of a report. ``host``: method -> operator -> how many of it were left to the host."""

    delegates: list[DelegateRow] = field(default_factory=list)
    host: dict[str, dict[str, int]] = field(default_factory=dict)
    causes: list[Cause] = field(default_factory=list)


class ReportOrigin:
    """The programs that the rows and pictures of a report are made from, on demand. A pickled report goes without."""

    def __init__(
        self,
        programs: Mapping[str, ExportedProgram] | None = None,
        delegates: Sequence[DelegateInfo] = (),
        reasons: Mapping[str, Reasons] | None = None,
        backends: Sequence[str] = (),
        what_if: WhatIf | None = None,
    ) -> None:
        self.programs, self.delegates = dict(programs or {}), tuple(delegates)
        self.reasons, self.backends = {m: dict(r) for m, r in (reasons or {}).items()}, tuple(backends)
        self.what_if = what_if
        self._notations: dict[str, Notation] = {}

    def notation(self, method: str) -> Notation:
        """How values of a method's program are written, for all that is made from it."""
        return self._notations.setdefault(method, Notation(self.programs[method].graph.nodes))

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
