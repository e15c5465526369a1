"""Try many programs on one backend, in other processes.

A *series* is a list of programs and a function that tries one of them. Several *lanes*
share a series: lane 1 of 2 tries the programs 0, 2, 4 and so on, one after the other in
one process. If the process crashes, the outcome of its program reports that, and the
lane continues in a new process. A *group* is a program that has members.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from .configured_backend import ConfiguredBackend
from .control_flow import WITHOUT_CONTROL_FLOW
from .failures import CheckFailed, CheckSkipped
from .opinfo import call_names, operator_programs
from .programs import RELAID, Program
from .random_programs import random_program
from .reproduce import calling_again, lowering, verifying
from .special_values import SPECIAL, special_programs
from .subprocesses import Answer, Report, find_by_name
from .trial import COMPILE_FAULTS, Fault, Kind, Outcome, try_program

SILENT_SECONDS = 600.0
"""Seconds that a program may take on a busy machine. ``CPU_SECONDS`` ends hangs sooner.
"""
CPU_SECONDS = 60.0
"""CPU time that one program may take in another process; more is a hang."""
REPORT_SECONDS = 20.0
"""Seconds until the first process reports its progress; later ones take twice as long.

Each process first makes all earlier programs again, so progress gets slower.
"""
_MOST_CRASHES = 20
"""A lane ends after this many crashes: each costs the start of a process."""
_FIXED = (*SPECIAL, *RELAID, WITHOUT_CONTROL_FLOW)


@dataclass(frozen=True)
class Series:
    """Programs in a fixed order, and the function that tries each of them.

    Another process finds the series by ``name``, ``"module:NAME"``. ``groups`` are the
    programs that have members. ``export`` exports programs once for all processes.
    """

    name: str
    programs: Callable[[ConfiguredBackend], Iterator[Program]]
    attempt: Callable[[Program, ConfiguredBackend], list[Outcome]] = try_program
    groups: tuple[Program, ...] = ()
    export: Callable[[], object] | None = None
    lanes: int = 1

    def find(self, backend: ConfiguredBackend, name: str) -> Program | None:
        """Return the program with a name, or the member of a program; None if absent."""
        for program in self.programs(backend):
            for candidate in (program, *program.members):
                if candidate.name == name:
                    return candidate
        return None


# --- the series for every backend


def _gate(backend: ConfiguredBackend) -> Iterator[Program]:
    """Yield the programs of GATE, or those of the chosen operators."""
    if backend.operators:
        return itertools.chain(
            operator_programs(backend.operators),
            special_programs(call_names(backend.operators)),
        )
    return itertools.chain(_FIXED, itertools.islice(_mixed(), backend.gate))


def _more(backend: ConfiguredBackend) -> Iterator[Program]:
    """Yield the programs of MORE."""
    return itertools.islice(_mixed(), backend.gate, None)


def _mixed() -> Iterator[Program]:
    """Yield five operators, a random program, and so on, always in the same order."""
    seeds = itertools.count(1000)
    for number, program in enumerate(operator_programs(), start=1):
        yield program
        if number % 5 == 0:
            yield random_program(next(seeds))


def export_fixed() -> None:
    """Export the fixed programs of the gate, and import OpInfo."""
    for program in _FIXED:
        program.exported  # noqa: B018 - kept by the program
    next(operator_programs())


SAMPLES = Series(f"{__name__}:SAMPLES", lambda backend: iter(backend.programs))
"""The small programs that every check uses (``ConfiguredBackend.programs``)."""
GATE = Series(f"{__name__}:GATE", _gate, groups=SPECIAL, export=export_fixed, lanes=2)
"""Special values, and the first ``backend.gate`` operators and random programs."""
MORE = Series(f"{__name__}:MORE", _more, export=export_fixed, lanes=2)
"""The programs after those of GATE, tried while there is time."""


# --- running a series


def run(
    backend: ConfiguredBackend,
    series: Series,
    seconds: float | None = None,
    within: float | None = None,
) -> list[Outcome]:
    """Return the outcomes of a series, in its order.

    ``seconds`` limits the time of a series that need not be complete. ``within`` is the
    part of the backend's budget, by default a fifth of the rest. Raises CheckSkipped if
    programs run on a device that this host lacks.
    """
    backend.needs_device()
    if within is None:
        within = backend.share(0.2)
    limit = min((s for s in (seconds, within) if s is not None), default=None)
    lanes = 1 if backend.operators else series.lanes

    def run_lane(number: int) -> list[list[Outcome]]:
        return list(_Lane(backend, series, number, lanes).run(limit))

    try:
        with ThreadPoolExecutor(lanes) as executor:
            tried = list(executor.map(run_lane, range(lanes)))
    except CheckSkipped:
        # A backend that exists in this process only is tried here, where a crash is
        # fatal. An optional series is not worth that.
        if seconds is not None:
            return []
        tried = [[series.attempt(p, backend) for p in series.programs(backend)]]
    outcomes: list[Outcome] = []
    # back to the order of the series: one program of each lane in turn
    for row in itertools.zip_longest(*tried, fillvalue=[]):
        outcomes += itertools.chain(*row)
    return outcomes


@dataclass
class _Lane:
    """Tries every ``lanes``-th program of a series from ``number`` on."""

    backend: ConfiguredBackend
    series: Series
    number: int
    lanes: int

    def run(self, seconds: float | None) -> Iterator[list[Outcome]]:
        """Yield the outcomes of each program."""
        start = self.number
        crashes = 0
        deadline = None if seconds is None else time.monotonic() + seconds
        until_report = REPORT_SECONDS
        while crashes < _MOST_CRASHES:
            limit = until_report
            if deadline is not None:
                limit = min(limit, deadline - time.monotonic())
            answer = self._try(start, inside=False, seconds=limit)
            items = [item for item in answer.items if item is not None]
            self._print_faults(items)
            yield from items

            start += self.lanes * len(items)
            if answer.failure:
                ended = self._outcomes_of_ended(answer, start)
                self._print_faults([ended])
                yield ended
                start += self.lanes
                crashes += 1
                continue
            if len(items) == len(answer.items):  # the end of the series
                return
            if deadline is not None and time.monotonic() > deadline:
                return
            until_report *= 2
            self._print_progress(start, items)

    def _try(self, start: int, inside: bool, seconds: float | None) -> Answer:
        """Let a new process try programs from ``start`` on (``try_series``)."""
        export = self.series.export
        return self.backend.run_elsewhere(
            try_series,
            self.series.name,
            start,
            self.lanes,
            inside,
            seconds,
            hash_seed=1 + self.number,
            seconds=SILENT_SECONDS,
            prepare=None if export is None else f"{self.series.name}.export",
        )

    def _outcomes_of_ended(self, answer: Answer, number: int) -> list[Outcome]:
        """Return the outcomes of program ``number``, at which a process ended.

        If it is a group, its members are tried, and their outcomes returned.
        """
        if not answer.progress:
            raise CheckFailed(
                f"the process that tries programs {answer.failure}:"
                f" {answer.output[-500:]}"
            )
        if any(group.name == answer.progress for group in self.series.groups):
            inside = self._try(number, inside=True, seconds=None)
            if inside.failure:
                return [*itertools.chain(*inside.items), _ended(inside)]
        return [_ended(answer)]

    def _print_faults(self, found: list[list[Outcome]]) -> None:
        """Print faults at once: a user may stop a long check before its end."""
        for outcome in itertools.chain(*found):
            for fault in outcome.faults:
                text = " ".join(fault.text.split())
                self.backend.tell(f"{outcome.program}: {text:.200}")

    def _print_progress(self, start: int, items: list[list[Outcome]]) -> None:
        programs = [outcome.program for outcome in itertools.chain(*items)]
        last = programs[-1] if programs else "none"
        self.backend.tell(
            f"process {self.number + 1} of {self.lanes} has tried"
            f" {start // self.lanes} programs, the last {last}"
        )


def _ended(answer: Answer) -> Outcome:
    """Return the outcome of the program at which a process ended."""
    kind = Kind.ESCAPED
    if answer.hung:
        kind = Kind.HANG
    elif answer.died:
        kind = Kind.CRASH
    text = f"the process that lowered and ran it {answer.failure}"
    if answer.output:
        text += f"; it printed: {answer.output[-300:]}"
    return Outcome(answer.progress, reached=True, faults=(Fault(kind, text),))


def try_series(
    backend: ConfiguredBackend,
    name: str,
    start: int,
    step: int,
    inside: bool,
    seconds: float | None,
    report: Report,
) -> Iterator[list[Outcome] | None]:
    """Yield the outcomes of each ``step``-th program of a series from ``start`` on.

    With ``inside``, yields those of the members of program ``start`` instead. After
    ``seconds``, but not before the first program, it yields None and ends. Runs in
    another process.
    """
    series: Series = find_by_name(name)
    programs = itertools.islice(series.programs(backend), start, None, step)
    # the default action of the signal ends the process, also inside C code
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    deadline = None if seconds is None else time.monotonic() + seconds
    tried = False
    for program in next(programs).members if inside else programs:
        if deadline is not None and tried and time.monotonic() > deadline:
            yield None
            return
        tried = True
        report(program.name)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        yield series.attempt(program, backend)


# --- outcomes


@dataclass
class Sweep:
    """The outcomes of programs that were tried."""

    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def reached(self) -> list[Outcome]:
        """Return the outcomes of programs that reached the partitioner."""
        return [o for o in self.outcomes if o.reached]

    @property
    def accepted(self) -> Counter[str]:
        """Return the number of delegated calls of each operator."""
        counts: Counter[str] = Counter()
        for outcome in self.outcomes:
            counts.update(outcome.accepted)
        return counts

    @property
    def refused(self) -> Counter[str]:
        """Return the number of refused calls of each operator."""
        counts: Counter[str] = Counter()
        for outcome in self.outcomes:
            counts.update(name for name, _ in outcome.refused)
        return counts

    def __str__(self) -> str:
        return "\n".join(_line(o) for o in self.outcomes)


def _line(outcome: Outcome) -> str:
    """Return a line of ``--verbose``: state, program, and faults or reasons."""
    refused = "; ".join(
        dict.fromkeys(f"{name}: {why}" for name, why in outcome.refused)
    )
    state = "-"
    text = outcome.excuse
    if outcome.faults:
        state = "FAILED"
        text = "; ".join(fault.text.partition("\n")[0] for fault in outcome.faults)
    elif outcome.compared and not outcome.excuse:
        state = "ok"
    if not text and refused:
        text = f"host: {refused}"
    return f"{state:6}  {outcome.program}  {text}".rstrip()


def faults_of(outcomes: Iterable[Outcome]) -> list[tuple[Outcome, Fault]]:
    """Return all faults, each with its outcome."""
    return [(outcome, fault) for outcome in outcomes for fault in outcome.faults]


def raise_first_fault(
    faults: list[tuple[Outcome, Fault]],
    backend: ConfiguredBackend,
    *series: Series,
    shown: Callable[[Program], Program] = lambda program: program,
) -> None:
    """Raise CheckFailed for the first fault; do nothing if there is none.

    The program of the fault is searched in ``series``. The message shows the result of
    ``shown(program)``.
    """
    if not faults:
        return
    (outcome, fault), *others = faults
    program = None
    for candidates in series:
        program = program or candidates.find(backend, outcome.program)
    more = []
    for other, further in others:
        first_line = further.text.partition("\n")[0]
        more.append(f"{other.program}: {first_line}")
    ending = verifying(backend)
    if fault.kind is Kind.ALIASED:
        ending = calling_again(backend)
    elif fault.kind in COMPILE_FAULTS and not outcome.fatal:
        ending = lowering(backend) + "print(lowered.report)\n"
    raise CheckFailed(
        fault.text, program and shown(program), fault.kind.value, more, ending
    )
