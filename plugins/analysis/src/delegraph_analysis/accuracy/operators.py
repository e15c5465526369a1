"""How every value of a lowered program compares with eager: the first operator that
differs, and the worst.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from delegraph.host import TOLERANCES, OutputStatistics, Verification, finite
from delegraph_programs import Source

SLACK = 2.0
"""How much more than eager itself an operator may lose: eager's own rounding is no
error of a backend.
"""
SHOWN = 8
"""Operators that the text lists."""


class OperatorStatistics(NamedTuple):
    """One value: the operator that makes it, where that runs, and how it compares with
    a run in float64.

    ``node`` is its name in the graph, ``where`` the delegate that computes it or
    ``"host"``. ``eager_error`` is the relative error of eager, in the program's own
    types, against the same reference.
    """

    method: str
    node: str
    operator: str
    debug_handle: int | None
    where: str
    source: Source | None
    figures: OutputStatistics
    eager_error: float
    quantizes: bool = False
    """Then one step of the integers is agreement."""
    iteration: int | None = None
    """Of a loop body: the run of it, from 1, that these figures are of, which is the
    worst.
    """
    differs_from: int | None = None
    """Of a loop body: the first run of it that does not agree."""

    def agrees(self, tolerance: float | None = None) -> bool:
        """Whether a difference is nobody's, within the tolerance of its type or twice
        what eager itself loses.
        """
        f = self.figures
        if f.remark or f.agrees(tolerance) or (self.quantizes and f.max_abs_error <= 1):
            return True
        return not f.mismatched and f.relative_error <= SLACK * self.eager_error

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values."""
        named = {
            k: getattr(self, k)
            for k in ("method", "node", "operator", "debug_handle", "where")
        }
        s = self.source
        place = s and {
            "file": s.file,
            "line": s.line,
            "function": s.function,
            "code": s.code,
        }
        figures = {k: v for k, v in self.figures.to_json().items() if k != "name"}
        runs = {"iteration": self.iteration, "differs_from": self.differs_from}
        errors = {"eager_error": finite(self.eager_error), "agrees": self.agrees()}
        return {**named, "source": place, **figures, **errors, **runs}

    def __str__(self) -> str:
        f = self.figures
        size = (
            f"{f.relative_error:.2g} of the largest value (eager"
            f" {self.eager_error:.2g})"
        )
        size += (
            f", {f.mismatched} elements are NaN or infinite on one side only, or of"
            " another sign" * bool(f.mismatched)
        )
        line = f"\n      at {self.source}" if self.source else ""
        since = (
            f" (it differs from {self.differs_from} on)" if self.differs_from else ""
        )
        size += f", in iteration {self.iteration}{since}" if self.iteration else ""
        remark = f"\n      {f.remark}" if f.remark else ""
        return (
            f"{self.node} = {self.operator} in {self.where}, {f.dtype}{list(f.shape)}:"
            f" {size}{remark}{line}"
        )


@dataclass(frozen=True)
class OperatorVerification:
    """Every value that could be compared, in the order of the program, and which could
    not (why -> how many).
    """

    operators: tuple[OperatorStatistics, ...]
    not_compared: Mapping[str, int]

    def differing(self) -> list[OperatorStatistics]:
        """Those that do not agree, in order."""
        return [o for o in self.operators if not o.agrees()]

    @property
    def first(self) -> OperatorStatistics | None:
        """The first that does not agree: where the error begins."""
        return next(iter(self.differing()), None)

    @property
    def worst(self) -> OperatorStatistics | None:
        """The one with the largest error beside what its type allows; None if nothing
        was compared.
        """
        return max(self.operators, key=severity, default=None)

    @property
    def remarked(self) -> list[OperatorStatistics]:
        """Those whose difference is nobody's error: ties, and decisions in which eager
        disagrees with itself.
        """
        return [o for o in self.operators if o.figures.remark]

    @staticmethod
    def worst_of(several: Sequence[OperatorVerification]) -> OperatorVerification:
        """Of runs of one program: the worst figures of each operator."""
        rows: dict[tuple[str, str], OperatorStatistics] = {}
        # it has all operators in their order
        longest_first = sorted(several, key=lambda one: -len(one.operators))
        for row in (row for one in longest_first for row in one.operators):
            key = (row.where, row.figures.name)
            rows[key] = max(rows.get(key, row), row, key=severity)
        return OperatorVerification(tuple(rows.values()), several[0].not_compared)

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values."""
        first = self.first
        worst = self.worst
        return {
            "compared": len(self.operators),
            "differing": len(self.differing()),
            "first": first and first.to_json(),
            "worst": worst and worst.to_json(),
            "not_compared": dict(self.not_compared),
            "values": [o.to_json() for o in self.operators],
        }

    def __str__(self) -> str:
        differing = self.differing()
        worst = self.worst
        lines = [
            f"{len(self.operators)} values compared with float64, {len(differing)}"
            " differ"
        ]
        lines += [
            f"  not compared: {n} values ({why})"
            for why, n in self.not_compared.items()
        ]
        if differing:
            lines.append(f"  first: {differing[0]}")
        if worst is not None:
            lines.append(f"  worst: {worst}")
        more = [
            o
            for o in sorted(differing[1:], key=severity, reverse=True)
            if o is not worst
        ][:SHOWN]
        lines += [f"  also:  {o}" for o in more]
        lines += [f"  said:  {o}" for o in self.remarked[:SHOWN]]
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class VerificationByOperator(Verification):
    """How every output compares with eager, and every value on the way with a run in
    float64.
    """

    operators: OperatorVerification = OperatorVerification((), {})

    def to_json(self) -> dict[str, Any]:
        """As a dictionary; infinite figures, which JSON lacks, become None."""
        return {**super().to_json(), "operators": self.operators.to_json()}

    @classmethod
    def worst_of(cls, several: Sequence[Verification]) -> Verification:
        """Of one method with several inputs: the worst figures of each output and
        operator.
        """
        outputs = Verification.worst_of(several).outputs
        found = [o for o in map(operators_of, several) if o is not None]
        return (
            cls(outputs, found[0].worst_of(found)) if found else Verification(outputs)
        )

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.operators}"


def operators_of(found: Verification) -> OperatorVerification | None:
    """The figures of operators, if they are there."""
    return found.operators if isinstance(found, VerificationByOperator) else None


def merged(rows: Iterable[OperatorStatistics]) -> Iterator[OperatorStatistics]:
    """One row of each value, in the order of the program: of iterations the worst, and
    since when it differs.
    """
    groups: dict[tuple[str, str], list[OperatorStatistics]] = {}
    for row in rows:
        groups.setdefault((row.where, row.figures.name), []).append(row)
    for group in groups.values():
        if len(group) == 1 and group[0].iteration is None:
            yield group[0]
            continue
        first = next((row.iteration for row in group if not row.agrees()), None)
        yield max(group, key=severity)._replace(differs_from=first)


def severity(o: OperatorStatistics) -> tuple[bool, int, float]:
    """How bad the difference is: whether it is too large, elements that are not finite,
    error by what is accepted.
    """
    if o.figures.remark:
        return False, 0, 0.0
    accepted = max(TOLERANCES.get(o.figures.dtype, 1e-9), SLACK * o.eager_error)
    return not o.agrees(), o.figures.mismatched, o.figures.relative_error / accepted
