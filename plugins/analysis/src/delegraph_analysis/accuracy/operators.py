"""Hold the comparison of every value of a lowered program with float64."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from delegraph.host import TOLERANCES, OutputStatistics, Verification, finite
from delegraph_programs import Source

SLACK = 2.0
"""The accepted error of an operator, as a multiple of eager's own error."""
SHOWN = 8
"""The number of operators in the text."""


class OperatorStatistics(NamedTuple):
    """One value: its operator, its place, and its comparison with float64.

    ``node`` is its name in the graph, ``where`` its delegate or ``"host"``.
    ``eager_error`` is the relative error of eager, in the program's own types, against
    the same reference.
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
    """Whether its operator quantizes: an error of one integer step is then accepted."""
    iteration: int | None = None
    """The worst run of a loop body, from 1, which has these figures."""
    differs_from: int | None = None
    """The first run of a loop body that does not agree."""

    def agrees(self, tolerance: float | None = None) -> bool:
        """Return whether the value is close enough, or its difference is excused.

        It is close enough within the tolerance of its type, or within twice the error
        of eager.
        """
        figures = self.figures
        if figures.remark or figures.agrees(tolerance):
            return True
        if self.quantizes and figures.max_abs_error <= 1:
            return True
        if figures.mismatched:
            return False
        return figures.relative_error <= SLACK * self.eager_error

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of plain values."""
        source = None
        if self.source is not None:
            source = {
                "file": self.source.file,
                "line": self.source.line,
                "function": self.source.function,
                "code": self.source.code,
            }
        figures = self.figures.to_json()
        figures.pop("name", None)
        return {
            "method": self.method,
            "node": self.node,
            "operator": self.operator,
            "debug_handle": self.debug_handle,
            "where": self.where,
            "source": source,
            **figures,
            "eager_error": finite(self.eager_error),
            "agrees": self.agrees(),
            "iteration": self.iteration,
            "differs_from": self.differs_from,
        }

    def __str__(self) -> str:
        figures = self.figures
        text = (
            f"{self.node} = {self.operator} in {self.where},"
            f" {figures.dtype}{list(figures.shape)}: {figures.relative_error:.2g} of the"
            f" largest value (eager {self.eager_error:.2g})"
        )
        if figures.mismatched:
            text += (
                f", {figures.mismatched} elements are NaN or infinite on one side only,"
                " or of another sign"
            )
        if self.iteration:
            text += f", in iteration {self.iteration}"
            if self.differs_from:
                text += f" (it differs from {self.differs_from} on)"
        if figures.remark:
            text += f"\n      {figures.remark}"
        if self.source:
            text += f"\n      at {self.source}"
        return text


@dataclass(frozen=True)
class OperatorVerification:
    """All compared values in the order of the program.

    ``not_compared``: reason -> the number of values.
    """

    operators: tuple[OperatorStatistics, ...]
    not_compared: Mapping[str, int]

    def differing(self) -> list[OperatorStatistics]:
        """Return the values that do not agree, in order."""
        return [o for o in self.operators if not o.agrees()]

    @property
    def first(self) -> OperatorStatistics | None:
        """Return the first value that does not agree: the beginning of the error."""
        return next(iter(self.differing()), None)

    @property
    def worst(self) -> OperatorStatistics | None:
        """Return the value with the largest error relative to its tolerance.

        Returns None if no value was compared.
        """
        return max(self.operators, key=severity, default=None)

    @property
    def remarked(self) -> list[OperatorStatistics]:
        """Return the values with an excused difference: ties, and decisions that differ
        between runs of eager.
        """
        return [o for o in self.operators if o.figures.remark]

    @staticmethod
    def worst_of(several: Sequence[OperatorVerification]) -> OperatorVerification:
        """Return the worst figures of each operator in several runs of one program."""
        rows: dict[tuple[str, str], OperatorStatistics] = {}
        # the longest run has all operators in their order
        longest_first = sorted(several, key=lambda one: -len(one.operators))
        for one in longest_first:
            for row in one.operators:
                key = (row.where, row.figures.name)
                rows[key] = max(rows.get(key, row), row, key=severity)
        return OperatorVerification(tuple(rows.values()), several[0].not_compared)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of plain values."""
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
        others = [o for o in differing[1:] if o is not worst]
        others.sort(key=severity, reverse=True)
        lines += [f"  also:  {o}" for o in others[:SHOWN]]
        lines += [f"  note:  {o}" for o in self.remarked[:SHOWN]]
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class VerificationByOperator(Verification):
    """The comparison of all outputs with eager, and of all values with float64."""

    operators: OperatorVerification = OperatorVerification((), {})

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary; infinite figures, which JSON lacks, become None."""
        return {**super().to_json(), "operators": self.operators.to_json()}

    @classmethod
    def worst_of(cls, several: Sequence[Verification]) -> Verification:
        """Return the worst figures of each output and operator, for several inputs."""
        outputs = Verification.worst_of(several).outputs
        found = [o for o in map(operators_of, several) if o is not None]
        if not found:
            return Verification(outputs)
        return cls(outputs, OperatorVerification.worst_of(found))

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.operators}"


def operators_of(found: Verification) -> OperatorVerification | None:
    """Return the figures of operators in a verification; None if it has none."""
    return found.operators if isinstance(found, VerificationByOperator) else None


def merged(rows: Iterable[OperatorStatistics]) -> Iterator[OperatorStatistics]:
    """Yield one row for each value, in the order of the program.

    The row of a loop body is that of its worst iteration.
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


class Severity(NamedTuple):
    """How bad the error of a value is. ``ratio``: the error relative to the accepted one."""

    differs: bool
    mismatched: int
    ratio: float


def severity(o: OperatorStatistics) -> Severity:
    """Return a key by which worse values compare as greater."""
    if o.figures.remark:
        return Severity(False, 0, 0.0)
    accepted = max(TOLERANCES.get(o.figures.dtype, 1e-9), SLACK * o.eager_error)
    ratio = o.figures.relative_error / accepted
    return Severity(not o.agrees(), o.figures.mismatched, ratio)
