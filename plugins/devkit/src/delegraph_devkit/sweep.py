"""Many small programs on one backend, in another process: what ends that costs one program, and is reported with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import trial
from .outcomes import CheckFailed, CheckSkipped
from .programs import Program
from .trial import UNCOMPILED, Fault, Kind, Outcome

if TYPE_CHECKING:
    from .backend_under_test import Subject
    from .subprocesses import Answer

SILENT_SECONDS = 600.0
"""How long a program may take, on however busy a machine; a hang that uses the processor is found sooner."""
_MOST_CRASHES = 20


@dataclass
class Sweep:
    """What was tried and what came of it."""

    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def reached(self) -> list[Outcome]:
        """Programs about whose calls the partitioner was asked."""
        return [o for o in self.outcomes if o.reached]

    @property
    def accepted(self) -> Counter[str]:
        """Operator -> how often it was delegated."""
        return Counter(name for o in self.outcomes for name in o.accepted)

    @property
    def refused(self) -> Counter[str]:
        """Operator -> how often it was refused."""
        return Counter(name for o in self.outcomes for name, _ in o.refused)

    def faults(self, compiling: bool) -> list[tuple[Outcome, Fault]]:
        """What is wrong with partitioning and compiling, or with the results."""
        return [(o, f) for o in self.outcomes for f in o.faults if (f.kind in UNCOMPILED) is compiling]

    def __str__(self) -> str:
        return "\n".join(_line(o) for o in self.outcomes)


def _line(one: Outcome) -> str:
    refused = "; ".join(dict.fromkeys(f"{name}: {why}" for name, why in one.refused))
    told = [f.text.partition("\n")[0] for f in one.faults] or [one.excuse or (refused and f"host: {refused}")]
    state = "FAILED" if one.faults else "ok" if one.compared and not one.excuse else "-"
    return f"{state:6}  {one.program}  {'; '.join(filter(None, told))}".rstrip()


def run(subject: Subject, part: str) -> list[Outcome]:
    """The outcomes of all programs of a part. Raises CheckFailed if none could be tried."""
    try:
        found = [o for outcomes in _elsewhere(subject, part) for o in outcomes]
    except CheckSkipped:  # a backend that exists in this process only is tried here, without protection
        found = [o for p in _programs(subject, part) for o in trial.try_one(p, subject)]
    return found


def _programs(subject: Subject, part: str) -> Iterator[Program]:
    return trial.programs(subject, part) if part != "more" else iter(())


def _elsewhere(subject: Subject, part: str) -> Iterator[list[Outcome]]:
    start = crashes = 0
    seconds = subject.seconds if part == "more" else None
    while crashes < _MOST_CRASHES:
        answer = _answer(subject, part, start, False, seconds)
        yield from answer.items
        if answer.finished:
            return
        start, crashes = start + len(answer.items) + 1, crashes + 1
        yield _crashed(subject, part, start - 1, answer)


def _answer(subject: Subject, part: str, start: int, inside: bool, seconds: float | None) -> Answer:
    function, preparation = (f"{trial.__name__}:{name}" for name in ("try_all", "prepare"))
    prepare = preparation if part != "samples" else None
    answer = subject.elsewhere(function, part, start, inside, seconds, seconds=SILENT_SECONDS, prepare=prepare)
    if not answer.finished and not answer.progress:
        raise CheckFailed(f"the process that tries programs {answer.failure}: {answer.output[-500:]}")
    return answer


def _crashed(subject: Subject, part: str, place: int, answer: Answer) -> list[Outcome]:
    """The program at which a process ended; if it has members, the one of them that ends it too."""
    found = [_ended(answer)]
    if any(p.members for p in (find(subject, answer.progress),) if p):
        inside = _answer(subject, part, place, True, None)
        found = [o for outcomes in inside.items for o in outcomes] + ([] if inside.finished else [_ended(inside)])
        found = found if not inside.finished else [_ended(answer)]
    return found


def _ended(answer: Answer) -> Outcome:
    said = f"; it printed: {answer.output[-300:]}" if answer.output else ""
    kind = Kind.HANG if answer.timed_out or answer.signal == "SIGPROF" else Kind.CRASH
    text = f"the process in which it was lowered and run {answer.failure}{said}"
    return Outcome(answer.progress, True, faults=(Fault(kind, text),))


def find(subject: Subject, name: str) -> Program | None:
    """The program of that name, wherever it is."""
    for part in ("samples", "gate", "more"):
        for program in trial.programs(subject, part):
            for one in (program, *program.members):
                if one.name == name:
                    return one
    return None
