"""The rows of a report, each with the list of its facts, and the programs that rows and pictures are made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..delegates.lowered_module import Argument
from ..partitioner.contract import Reason
from ..source import Source
from .facts import (
    AMOUNTS,
    COUNT,
    COUNTS,
    SECONDS,
    TEXT,
    TEXTS,
    Fact,
    Told,
    array_of,
    by_name,
    format_size,
    list_amounts,
    list_counts,
    list_seconds,
    most_frequent,
    optional,
    pluralize,
    row_as,
)
from .notation import Notation

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from ..delegates.delegates import DelegateInfo

Reasons = dict[tuple[str, int, str], str]
"""(backend, debug handle, operator) -> why the backend refused it, which may be a ``Reason``.

The calls that a call is decomposed to share its handle.
"""
WhatIf = Callable[[str, str, Reason], "frozenset[int] | None"]
"""(method, backend, reason) -> handles that the backend would refuse if the reason did not hold; None: not known."""


def _count_operators(counts: Mapping[str, int]) -> str:
    """The number of operators in words."""
    return pluralize(sum(counts.values()), "operator")


_PLACE = row_as("place", lambda source: {"file": source.file, "line": source.line, "code": source.code})


@dataclass(frozen=True)
class DelegateRow(Told):
    """One delegate: where it is called, its backend, what it computes (operator -> count), its border and its size.

    ``seconds``: how long each phase of the lowering took for this delegate; empty if that was not measured. ``target``:
    what it was compiled for, if its backend says so; it is among ``facts`` only if delegates of one backend have
    different ones. ``figures``: amounts that its backend expects, such as cycles, summed over the delegate.
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
    target: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def operator_count(self) -> int:
        return sum(self.operators.values())

    FACTS = (
        *(Fact(name, TEXT) for name in ("method", "name", "backend", "producer")),
        Fact("bytes", COUNT, "size", format_size),
        Fact("inputs", TEXTS, "inputs", lambda border: pluralize(len(border), "input"), TEXTS.plain),
        Fact("outputs", TEXTS, "outputs", lambda border: pluralize(len(border), "output"), TEXTS.plain),
        Fact("operators", COUNTS, "operators", _count_operators, list_counts, first=True),
        Fact("facts", by_name(TEXT), "facts", lambda facts: ", ".join(f"{k} {v}" for k, v in facts.items())),
        Fact("seconds", SECONDS, "time", entries=list_seconds),
        Fact("target", TEXT),
        Fact("figures", AMOUNTS, "figures", lambda figures: ", ".join(list_amounts(figures))),
    )

    def __str__(self) -> str:
        return f"{self.name}  {self.backend} ({self.producer})  {self.in_short()}"


@dataclass(frozen=True)
class LineFigures(Told):
    """Amounts that backends expect, such as cycles, for one line of the user's program.

    ``sources`` has several lines if a backend fused their operators, and none if no line is known.
    """

    method: str
    sources: tuple[Source, ...]
    figures: Mapping[str, float]

    FACTS = (
        Fact("method", TEXT),
        Fact("figures", AMOUNTS),
        Fact("sources", array_of(_PLACE)),
    )

    def __str__(self) -> str:
        places = [str(source) for source in self.sources[:1]] + [source.place for source in self.sources[1:]]
        return f"{', '.join(list_amounts(self.figures))}  {' with '.join(places) or 'no line is known'}"


@dataclass(frozen=True)
class RefusalRow(Told):
    """Operators of one kind that stayed on the host for one reason: how many, and where the first of them is."""

    method: str
    operator: str
    backend: str
    reason: str
    count: int
    source: Source | None

    FACTS = (
        *(Fact(name, TEXT) for name in ("method", "operator", "backend", "reason")),
        Fact("count", COUNT),
        Fact("source", optional(_PLACE)),
    )


@dataclass(frozen=True)
class Cause(Told):
    """What keeps operators from a backend; and those operators, in ``refusals``, one row for each kind and reason.

    ``reason`` is that of the operator with which the cause begins; operators that only pass it on have reasons of their
    own in ``refusals``. ``hint``: what to do about it, if the backend says so. ``behind``: the operator that this cause
    follows from, if that one is left to the host for another cause; else "". ``frees``: how many operators the backend
    would take without this cause; None if it was not asked. ``handles``: debug handles of the operators, in the order
    of the program.
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
        """How many operators the cause keeps on the host."""
        return sum(row.count for row in self.refusals)

    @property
    def operators(self) -> dict[str, int]:
        """Operator -> how many of it the cause keeps on the host."""
        total: Counter[str] = Counter()
        for row in self.refusals:
            total[row.operator] += row.count
        return dict(total)

    @property
    def source(self) -> Source | None:
        """The first known line of the user's program among the operators."""
        return next((row.source for row in self.refusals if row.source), None)

    # these are only for JSON: text and page tell them in sentences (``remarks`` and ``__str__``)
    FACTS = (
        *(Fact(name, TEXT) for name in ("method", "backend", "reason", "hint", "behind")),
        Fact("count", COUNT),
        Fact("frees", optional(COUNT)),
        Fact("operators", COUNTS),
        Fact("source", optional(_PLACE)),
    )

    @property
    def remarks(self) -> list[str]:
        """Sentences, a line each, about everything but operators and reason."""
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
            lines.append(", ".join(list_counts(self.operators)))
        return "\n      ".join([f"{shown}  {self.backend}: {self.reason}", *lines])


@dataclass(frozen=True)
class GivenBack(Told):
    """A partition that a backend took and its compiler refused: the next backend, or the host, got its operators.

    ``operators``: operator -> count. ``source``: the line that the compiler names, else the first of the partition.
    """

    method: str
    backend: str
    partition: str
    operators: Mapping[str, int]
    reason: str
    source: Source | None

    FACTS = (
        *(Fact(name, TEXT, name) for name in ("method", "backend", "partition", "reason")),
        Fact("operators", COUNTS, "operators", _count_operators, list_counts),
        Fact("source", optional(_PLACE)),
    )

    def __str__(self) -> str:
        at = f"\n      at {self.source}" if self.source else ""
        return f"{self.partition}  {self.in_short()}  {self.backend}: {self.reason}{at}"


@dataclass(frozen=True)
class MethodRow(Told):
    """One method: its delegates, and operator -> how many of it were left to the host."""

    name: str
    delegates: Sequence[DelegateRow]
    left: Mapping[str, int]

    @property
    def delegated_operators(self) -> int:
        return sum(row.operator_count for row in self.delegates)

    @property
    def host_operators(self) -> int:
        return sum(self.left.values())

    FACTS = (
        Fact("delegates", COUNT, "delegates", "{:,}".format, value=lambda m: len(m.delegates)),
        Fact("delegated_operators", COUNT, "operators in them", "{:,}".format),
        Fact("bytes", COUNT, "size", format_size, value=lambda m: sum(row.bytes for row in m.delegates)),
        Fact("host_operators", COUNT, "operators on the host", "{:,}".format),
    )


@dataclass
class Rows:
    """All rows of a report. ``host``: method -> operator -> how many of it were left to the host."""

    delegates: list[DelegateRow] = field(default_factory=list)
    host: dict[str, dict[str, int]] = field(default_factory=dict)
    causes: list[Cause] = field(default_factory=list)
    given_back: list[GivenBack] = field(default_factory=list)
    figures: list[LineFigures] = field(default_factory=list)


class ReportOrigin:
    """The programs from which rows and pictures of a report are made when they are needed.

    A pickled report has none.
    """

    def __init__(
        self,
        programs: Mapping[str, ExportedProgram] | None = None,
        delegates: Sequence[DelegateInfo] = (),
        reasons: Mapping[str, Reasons] | None = None,
        backends: Sequence[str] = (),
        what_if: WhatIf | None = None,
        given_back: Sequence[GivenBack] = (),
    ) -> None:
        self.programs, self.delegates = dict(programs or {}), tuple(delegates)
        self.reasons, self.backends = {m: dict(r) for m, r in (reasons or {}).items()}, tuple(backends)
        self.what_if, self.given_back = what_if, tuple(given_back)
        self._notations: dict[str, Notation] = {}

    def notation(self, method: str) -> Notation:
        """How values of a method's program are written; shared by all that is made from it."""
        return self._notations.setdefault(method, Notation(self.programs[method].graph.nodes))

    def __deepcopy__(self, memo: Any) -> ReportOrigin:
        return self

    def __reduce__(self) -> tuple[type[ReportOrigin], tuple[()]]:
        return ReportOrigin, ()
