"""Try many programs on one backend, in other processes.

A crash costs one program, and is reported with it.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from .configured_backend import ConfiguredBackend
from .control_flow import WITHOUT_CONTROL_FLOW
from .failures import CheckFailed, CheckSkipped
from .opinfo import call_names, operator_programs
from .programs import RELAID, Program
from .random_programs import random_program
from .reproduce import calling_again, lowering, verifying
from .special_values import SPECIAL, special_programs
from .subprocesses import Answer, Report, find_by_name
from .trial import UNCOMPILED, Fault, Kind, Outcome, try_program

SILENT_SECONDS = 600.0
"""Seconds that a program may take on a busy machine. ``CPU_SECONDS`` ends hangs sooner.
"""
CPU_SECONDS = 60.0
"""CPU time that one program may take in another process; more is a hang."""
TOLD_SECONDS = 20.0
"""Seconds until the first process reports its progress; later ones take twice as long.

A process makes all programs before its first one again, so progress gets slower.
"""
_MOST_CRASHES = 20
_FIXED = (*SPECIAL, *RELAID, WITHOUT_CONTROL_FLOW)


@dataclass(frozen=True)
class Series:
    """The same programs in the same order, and the function that tries each of them.

    Another process finds the series by ``name``, ``"module:NAME"``. ``groups`` are the
    programs that have members. ``export`` exports programs once for all processes.
    ``lanes`` processes share the programs.
    """

    name: str
    programs: Callable[[ConfiguredBackend], Iterator[Program]]
    attempt: Callable[[Program, ConfiguredBackend], list[Outcome]] = try_program
    groups: tuple[Program, ...] = ()
    export: Callable[[], object] | None = None
    lanes: int = 1

    def find(self, backend: ConfiguredBackend, name: str) -> Program | None:
        """Return the program of a name."""
        tried = (one for p in self.programs(backend) for one in (p, *p.members))
        return next((p for p in tried if p.name == name), None)


# --- the series that every backend is tried on


def _gate(backend: ConfiguredBackend) -> Iterator[Program]:
    if backend.operators:
        return itertools.chain(
            operator_programs(backend.operators),
            special_programs(call_names(backend.operators)),
        )
    return itertools.chain(_FIXED, itertools.islice(_mixed(), backend.gate))


def _more(backend: ConfiguredBackend) -> Iterator[Program]:
    return itertools.islice(_mixed(), backend.gate, None)


def _mixed() -> Iterator[Program]:
    """Yield five operators, a random program, and so on, always in the same order."""
    seeds = itertools.count(1000)
    operators = operator_programs()
    while batch := list(itertools.islice(operators, 5)):
        yield from batch
        yield random_program(next(seeds))


def export_fixed() -> None:
    """Export the programs of the gate that are no operators, and import OpInfo."""
    for program in _FIXED:
        program.exported  # noqa: B018 - kept by the program
    next(operator_programs())


SAMPLES = Series(f"{__name__}:SAMPLES", lambda backend: iter(backend.programs))
GATE = Series(f"{__name__}:GATE", _gate, groups=SPECIAL, export=export_fixed, lanes=2)
MORE = Series(f"{__name__}:MORE", _more, export=export_fixed, lanes=2)
"""The programs after those of GATE, tried while there is time."""


# --- trying them


def run(
    backend: ConfiguredBackend,
    series: Series,
    seconds: float | None = None,
    within: float | None = None,
) -> list[Outcome]:
    """Return the outcomes of a series, in its order.

    ``seconds`` and ``within`` limit the time. ``within`` is the part of a budget, by
    default a fifth of the rest. Raises CheckSkipped if programs run on a device that
    this host lacks.
    """
    backend.needs_device()
    limits = [
        limit
        for limit in (seconds, backend.share(0.2) if within is None else within)
        if limit is not None
    ]
    limit = min(limits, default=None)
    lanes = 1 if backend.operators else series.lanes
    try:
        with ThreadPoolExecutor(lanes) as executor:
            tried = executor.map(
                lambda k: list(_run_lane(backend, series, limit, k, lanes)),
                range(lanes),
            )
            rows = itertools.zip_longest(*tried, fillvalue=())
    except CheckSkipped:
        # a backend that exists in this process only is tried here, without protection
        if seconds is not None:
            return []
        return [
            outcome
            for p in series.programs(backend)
            for outcome in series.attempt(p, backend)
        ]
    return [outcome for row in rows for outcomes in row for outcome in outcomes]


def _run_lane(
    backend: ConfiguredBackend,
    series: Series,
    seconds: float | None,
    lane: int,
    lanes: int,
) -> Iterator[list[Outcome]]:
    """Return the outcomes of every ``lanes``-th program from number ``lane`` on."""
    start = lane
    crashes = 0
    deadline = None if seconds is None else time.monotonic() + seconds
    told = TOLD_SECONDS

    def tell_faults(found: list[list[Outcome]]) -> list[list[Outcome]]:
        for outcome in itertools.chain(*found):
            # at once: a long check may be stopped before its end
            for fault in outcome.faults:
                backend.tell(f"{outcome.program}: {' '.join(fault.text.split()):.200}")
        return found

    prepare = f"{series.name}.export" if series.export is not None else None
    elsewhere = partial(
        backend.run_elsewhere,
        try_series,
        series.name,
        hash_seed=1 + lane,
        seconds=SILENT_SECONDS,
        prepare=prepare,
    )
    while crashes < _MOST_CRASHES:
        left = None if deadline is None else deadline - time.monotonic()
        answer = elsewhere(
            start, lanes, False, told if left is None else min(told, left)
        )
        items = [item for item in answer.items if item is not None]
        yield from tell_faults(items)
        if not answer.failure:
            if len(items) == len(answer.items):  # it came to the end of the series
                return
            start += lanes * len(items)
            if deadline is not None and time.monotonic() > deadline:
                return
            told *= 2
            backend.tell(
                f"{start // lanes} programs of process {lane + 1} of {lanes} tried, the"
                f" last {_last(items)}"
            )
            continue
        if not answer.progress:
            raise CheckFailed(
                f"the process that tries programs {answer.failure}:"
                f" {answer.output[-500:]}"
            )
        place = start + lanes * len(items)
        inside = Answer()
        if any(p.name == answer.progress for p in series.groups):
            inside = elsewhere(place, lanes, True, None)
        members = (
            [o for os in inside.items for o in os] + _ended(inside)
            if inside.failure
            else _ended(answer)
        )
        yield from tell_faults([members])
        start = place + lanes
        crashes = crashes + 1


def _last(items: list[list[Outcome]]) -> str:
    return next(
        (o.program for outcomes in reversed(items) for o in reversed(outcomes)), "none"
    )


def _ended(answer: Answer) -> list[Outcome]:
    """Return the outcome of the program at which a process ended."""
    said = f"; it printed: {answer.output[-300:]}" if answer.output else ""
    kind = Kind.HANG if answer.hung else Kind.CRASH if answer.died else Kind.ESCAPED
    text = f"the process in which it was lowered and run {answer.failure}{said}"
    return [Outcome(answer.progress, True, faults=(Fault(kind, text),))]


def try_series(
    backend: ConfiguredBackend,
    name: str,
    start: int,
    step: int,
    inside: bool,
    seconds: float | None,
    report: Report,
) -> Iterator[list[Outcome] | None]:
    """Return the outcomes of each ``step``-th program, or of one program's members.

    Runs in another process. It tries at least one program from ``start`` on. None
    follows if time did not suffice for the others.
    """
    series: Series = find_by_name(name)
    programs = itertools.islice(series.programs(backend), start, None, step)
    # its default action ends the process, also inside C code
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


# --- what came of it


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
        """Return how often each operator was delegated."""
        return Counter(name for o in self.outcomes for name in o.accepted)

    @property
    def refused(self) -> Counter[str]:
        """Return how often each operator was refused."""
        return Counter(name for o in self.outcomes for name, _ in o.refused)

    def __str__(self) -> str:
        return "\n".join(_line(o) for o in self.outcomes)


def _line(one: Outcome) -> str:
    refused = "; ".join(dict.fromkeys(f"{name}: {why}" for name, why in one.refused))
    told = [f.text.partition("\n")[0] for f in one.faults] or [
        one.excuse or (refused and f"host: {refused}")
    ]
    state = "FAILED" if one.faults else "ok" if one.compared and not one.excuse else "-"
    return f"{state:6}  {one.program}  {'; '.join(filter(None, told))}".rstrip()


def raise_first(
    faults: list[tuple[Outcome, Fault]],
    backend: ConfiguredBackend,
    *series: Series,
    shown: Callable[[Program], Program] = lambda program: program,
) -> None:
    """Raise CheckFailed for the first fault, if any, with its program from ``series``.

    ``shown`` returns the program that the message shows.
    """
    if not faults:
        return
    (one, fault), *others = faults
    program = next(
        (p for s in series if (p := s.find(backend, one.program)) is not None), None
    )
    more = [f"{o.program}: {f.text.partition(chr(10))[0]}" for o, f in others]
    ending = verifying(backend)
    if fault.kind is Kind.ALIASED:
        ending = calling_again(backend)
    elif fault.kind in UNCOMPILED and not one.fatal:
        ending = lowering(backend) + "print(lowered.report)\n"
    raise CheckFailed(
        fault.text, program and shown(program), fault.kind.value, more, ending
    )
