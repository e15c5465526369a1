"""The rows of a report, and ``ReportOrigin``, from which they are built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from delegraph_programs import Source

from ..delegates.lowered_module import Argument
from .user_names import Notation
from .values_as_text import (
    Fact,
    WithFacts,
    format_size,
    list_amounts,
    list_counts,
    list_seconds,
    most_frequent,
    pluralize,
)

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from ..delegates.find_delegates import DelegateInfo

Reasons = dict[tuple[str, int, str], str]
"""(backend, debug handle, operator) -> the reason for which the backend refused the
operator, often a ``Reason``.

If a call is decomposed, the calls that replace it get its handle. So one handle may
belong to several operators.
"""


class SupportCheck(NamedTuple):
    """A support check of a lowering, which a report may repeat.

    ``program``: the partitioned program. ``refused``: returns the debug handles of the
    operators that the backend refuses in ``program``, or in a changed copy of it.
    """

    program: ExportedProgram
    refused: Callable[[ExportedProgram], frozenset[int]]


def _count_operators(counts: Mapping[str, int]) -> str:
    """Return the total of the counts, as ``3 operators``."""
    return pluralize(sum(counts.values()), "operator")


def _count_of(noun: str) -> Callable[[Sequence[Any]], str]:
    """Return a function that writes the number of values, as ``3 inputs``."""
    return lambda values: pluralize(len(values), noun)


def _as_texts(values: Iterable[Any]) -> list[str]:
    """Return each value as text."""
    return [str(value) for value in values]


def _list_facts(facts: Mapping[str, str]) -> str:
    """Return names and facts in one text, as ``memory on-chip, target v2``."""
    return ", ".join(f"{name} {fact}" for name, fact in facts.items())


def _list_figures(figures: Mapping[str, float]) -> str:
    """Return names and amounts in one text, as ``cycles 1,200, bytes 64``."""
    return ", ".join(list_amounts(figures))


class Compilation(NamedTuple):
    """How a delegate was compiled.

    ``producer``: distribution and version of its backend. ``target``: the device or
    version that the delegate was compiled for; "" if the backend states none.
    ``seconds``: phase of the lowering -> duration for this delegate; empty if not
    measured. ``origin``: "compiled", "from the cache", or "equal to" and the name of
    another delegate; "" without a cache. ``output``: the text that the compiler
    printed; "" if not known.
    """

    producer: str
    target: str
    seconds: Mapping[str, float]
    origin: str
    output: str


@dataclass(frozen=True)
class DelegateRow(WithFacts):
    """One delegate.

    ``method``: the method that calls the delegate. ``operators``: operator -> count.
    ``bytes``: size of its blob. ``facts``: name -> fact that the backend states about
    it. The fact "target" is left out if all delegates of the backend have the same.
    ``figures``: amounts that the backend expects, such as cycles, summed over the
    delegate.
    """

    method: str
    name: str
    backend: str
    operators: Mapping[str, int]
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    bytes: int
    facts: Mapping[str, str]
    figures: Mapping[str, float]
    compilation: Compilation

    @property
    def producer(self) -> str:
        return self.compilation.producer

    @property
    def target(self) -> str:
        return self.compilation.target

    @property
    def seconds(self) -> Mapping[str, float]:
        return self.compilation.seconds

    @property
    def compiled(self) -> str:
        """Return "compiled", "from the cache" or the like; "" for a compiler that
        keeps no results.
        """
        return self.compilation.origin

    @property
    def output(self) -> str:
        return self.compilation.output

    @property
    def operator_count(self) -> int:
        """Return the number of calls in the delegate, all operators together."""
        return sum(self.operators.values())

    KEYS = (
        "method",
        "name",
        "backend",
        "producer",
        "bytes",
        "inputs",
        "outputs",
        "operators",
        "facts",
        "seconds",
        "target",
        "figures",
        "compiled",
        "output",
    )
    FACTS = (
        Fact("operators", "operators", _count_operators, list_counts),
        Fact("bytes", "size", format_size),
        Fact("inputs", "inputs", _count_of("input"), _as_texts),
        Fact("outputs", "outputs", _count_of("output"), _as_texts),
        Fact("facts", "facts", _list_facts),
        Fact("seconds", "time", entries=list_seconds),
        Fact("figures", "figures", _list_figures),
        Fact("compiled", "compiled", str),
        Fact("output", "compiler printed", entries=str.splitlines),
    )

    def __str__(self) -> str:
        return f"{self.name}  {self.backend} ({self.producer})  {self.in_short()}"


@dataclass(frozen=True)
class LineFigures(WithFacts):
    """Amounts that backends expect, such as cycles, for one line of the user's program.

    ``sources`` has several lines if a backend fused operators of several lines, and is
    empty if no line is known.
    """

    method: str
    sources: tuple[Source, ...]
    figures: Mapping[str, float]

    KEYS = ("method", "figures", "sources")

    def __str__(self) -> str:
        """Return the amounts, then the lines of the program.

        The first line has its code, the others are ``file:line``.
        """
        places = [str(source) for source in self.sources[:1]]
        places += [source.place for source in self.sources[1:]]
        where = " with ".join(places) or "no line is known"
        return f"{_list_figures(self.figures)}  {where}"


@dataclass(frozen=True)
class RefusalRow(WithFacts):
    """Calls of one operator that are left to the host for one reason.

    ``count``: the number of calls. ``source``: the first known line of the user's
    program with such a call; None if none is known.
    """

    method: str
    operator: str
    backend: str
    reason: str
    count: int
    source: Source | None

    KEYS = ("method", "operator", "backend", "reason", "count", "source")


@dataclass(frozen=True)
class Cause(WithFacts):
    """One cause for which a backend refused operators.

    ``reason``: the reason of the first operator refused for this cause. Further
    operators are refused only because they depend on the first one, and have reasons of
    their own. ``refusals``: a row for each pair of operator and reason. ``hint``:
    advice of the backend for the user, else "". ``behind``: the operator that computes
    an operand of the first operator, if it is refused for another cause; else "". This
    cause then follows from that one. ``frees``: how many more operators of the
    method the backend would take without this cause; None if not computed. ``handles``:
    debug handles of the refused operators, in the order of the program.
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
        """Return how many operators the cause keeps on the host."""
        return sum(row.count for row in self.refusals)

    @property
    def operators(self) -> dict[str, int]:
        """Return operator -> how many calls of it the cause keeps on the host."""
        total: Counter[str] = Counter()
        for row in self.refusals:
            total[row.operator] += row.count
        return dict(total)

    @property
    def source(self) -> Source | None:
        """Return the first known line with a refused operator, or None."""
        return next((row.source for row in self.refusals if row.source), None)

    # there are no FACTS, because text and pages write sentences (``remarks``)
    KEYS = (
        "method",
        "backend",
        "reason",
        "hint",
        "behind",
        "count",
        "frees",
        "operators",
        "source",
    )

    @property
    def remarks(self) -> list[str]:
        """Return a line for each of ``behind``, ``hint`` and ``frees``, if known."""
        remarks = []
        if self.behind:
            remarks = [f"follows from {self.behind}, which is left to the host itself"]
        if self.hint:
            remarks.append(f"hint: {self.hint}")
        if self.frees is not None:
            taken = pluralize(self.frees, "more operator")
            others = "" if self.frees else "; other reasons keep them on the host"
            remarks.append(
                f"without that cause {self.backend} would take {taken}{others}"
            )
        return remarks

    def __str__(self) -> str:
        """Return a line with the operators and the reason, and further lines.

        The further lines have the first source, the remarks, and the count of each
        operator if there are several.
        """
        counts = most_frequent(self.operators)
        if len(counts) == 1:
            ((operator, count),) = counts
            operators = f"{count} x {operator}"
            list_of_operators = []
        else:
            operators = pluralize(self.count, "operator")
            list_of_operators = [", ".join(list_counts(self.operators))]
        place = [f"first at {self.source}"] if self.source else []
        lines = [
            f"{operators}  {self.backend}: {self.reason}",
            *place,
            *self.remarks,
            *list_of_operators,
        ]
        return "\n      ".join(lines)


@dataclass(frozen=True)
class GivenBack(WithFacts):
    """A partition that a backend's partitioner took and its compiler refused.

    The next backend or the host gets its operators. ``operators``: operator -> count.
    ``source``: the line that the compiler's error names, else the partition's first
    line; None if neither is known.
    """

    method: str
    backend: str
    partition: str
    operators: Mapping[str, int]
    reason: str
    source: Source | None

    KEYS = ("method", "backend", "partition", "reason", "operators", "source")
    FACTS = (Fact("operators", "operators", _count_operators, list_counts),)

    def __str__(self) -> str:
        at = f"\n      at {self.source}" if self.source else ""
        return f"{self.partition}  {self.in_short()}  {self.backend}: {self.reason}{at}"


@dataclass(frozen=True)
class MethodRow(WithFacts):
    """One method. ``left``: operator -> how many calls of it were left to the host."""

    name: str
    delegates: Sequence[DelegateRow]
    left: Mapping[str, int]

    @property
    def delegate_count(self) -> int:
        return len(self.delegates)

    @property
    def delegated_operators(self) -> int:
        """Return the number of operators in the delegates of the method."""
        return sum(row.operator_count for row in self.delegates)

    @property
    def bytes(self) -> int:
        """Return the size of all blobs of the method's delegates together."""
        return sum(row.bytes for row in self.delegates)

    @property
    def host_operators(self) -> int:
        """Return the number of operators that are left to the host."""
        return sum(self.left.values())

    FACTS = (
        Fact("delegate_count", "delegates", "{:,}".format),
        Fact("delegated_operators", "operators in them", "{:,}".format),
        Fact("bytes", "size", format_size),
        Fact("host_operators", "operators on the host", "{:,}".format),
    )
    KEYS = ("delegated_operators", "bytes", "host_operators")

    def to_json(self) -> dict[str, Any]:
        """Return the attributes in ``KEYS``, and "delegates": their number."""
        return {"delegates": self.delegate_count, **super().to_json()}


@dataclass
class Rows:
    """All rows of a report.

    ``host``: method -> operator -> how many calls of it were left to the host.
    """

    delegates: list[DelegateRow] = field(default_factory=list)
    host: dict[str, dict[str, int]] = field(default_factory=dict)
    causes: list[Cause] = field(default_factory=list)
    given_back: list[GivenBack] = field(default_factory=list)
    figures: list[LineFigures] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class ReportOrigin:
    """The material of the rows and pictures of a report.

    ``programs``: method -> lowered program. ``reasons``: method -> reasons for which
    backends refused operators. ``backends``: names of the backends with which the
    program was lowered, in order of preference. ``checks``: (method, backend) -> the
    support check to repeat for ``Cause.frees``. ``given_back``: partitions that a
    compiler refused.
    """

    programs: Mapping[str, ExportedProgram] = field(default_factory=dict)
    delegates: Sequence[DelegateInfo] = ()
    reasons: Mapping[str, Reasons] = field(default_factory=dict)
    backends: Sequence[str] = ()
    checks: Mapping[tuple[str, str], SupportCheck] = field(default_factory=dict)
    given_back: Sequence[GivenBack] = ()
    _notations: dict[str, Notation] = field(default_factory=dict)

    def notation(self, method: str) -> Notation:
        """Return the ``Notation`` of a method's program.

        All calls for a method return the same object, which keeps its tables. A new
        Notation costs little, because it fills its tables when they are needed.
        """
        return self._notations.setdefault(
            method, Notation(self.programs[method].graph.nodes)
        )

    def __deepcopy__(self, memo: Any) -> ReportOrigin:
        """Return this origin itself: a copy of the programs would take much memory.

        Nothing changes an origin.
        """
        return self
