"""Measure where the time of a call goes: by line, module, operator and delegate.

Times are never split. A part that was fused from several lines counts under all of them
together. A part without a line is listed as such.
"""

from __future__ import annotations

import copy
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from delegraph import LoweredProgram
from delegraph.delegates import DelegateInfo
from delegraph.errors import InputError
from delegraph.formats import Origin, Step
from delegraph.host import FileFormat, call_of_model
from delegraph.io.escape_for_terminal import printable
from delegraph.runtime import Border, Spent, fused
from delegraph_programs import Source, line_of, operator_name
from delegraph_programs.exported_program import CALL_DELEGATE
from torch.fx import Node

_LISTED = 20
"""The rows of a table that the text has."""
_REST = "the rest of the delegate"
_NAME = 1000
"""The most characters of a name in it."""
OVERLAPS = 1.05
"""If the parts take this many times as long as the call, they ran at the same time."""


Interval = tuple[float, float]
"""Start and end, in seconds since the call of the program began."""


@dataclass(frozen=True)
class Part:
    """A part of a call, with the place that it ran in, and its seconds.

    ``what`` names its operators, or describes it otherwise, such as the rest of a
    delegate. ``where`` is ``host``, ``host, in PATH`` for a branch or loop body, or a
    delegate. Its known sources are ``lines`` (text, for a program in a file),
    ``modules`` and ``nodes`` (names in the graph of ``where``). ``identifier`` is the
    debug identifier from a delegate's runtime, or a tuple of fused ones, or None.
    ``intervals``: when it ran; () if that was not measured. ``call``: when the call of
    its delegate ran; None on the host.
    """

    what: str
    where: str
    seconds: float
    lines: tuple[Source | str, ...] = ()
    modules: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    identifier: Any = None
    intervals: tuple[Interval, ...] = ()
    call: Interval | None = None

    @staticmethod
    def of(
        what: str,
        where: str,
        seconds: float,
        nodes: Sequence[Node],
        **fields: Any,
    ) -> Part:
        """Return the part that was made from ``nodes``.

        ``fields``: its other fields.
        """
        lines = _lines(nodes)
        modules = _modules(nodes)
        names = tuple(n.name for n in nodes)
        return Part(what, where, seconds, lines, modules, names, **fields)

    @property
    def place(self) -> str:
        """Return ``host``, or the name of a delegate."""
        return self.where.partition(", in ")[0]

    @property
    def is_kernel(self) -> bool:
        """Return whether the runtime of a delegate reported this part."""
        return self.call is not None and self.what != _REST


@dataclass(frozen=True)
class ProgramProfile:
    """The parts of the call of median length among ``repeats``.

    The first call (``first_seconds``) does not count. ``seconds`` is the call as its
    caller sees it, ``fastest`` and ``slowest`` are the extremes. ``plain_seconds`` is
    the median of calls without a clock; both kinds alternate. ``watching`` is the time
    that the clock adds: the median of the differences between a call and the plain one
    after it. ``load`` is the number of processes per processor that were ready to run,
    averaged over the last minute.
    """

    method: str
    repeats: int
    seconds: float
    fastest: float
    slowest: float
    plain_seconds: float
    watching: float
    first_seconds: float
    load: float | None
    parts: tuple[Part, ...]
    expected: Mapping[str, Mapping[str, float]]

    @property
    def total(self) -> float:
        """Return the seconds of all parts.

        They exceed those of the call if a runtime's operators ran at the same time.
        """
        return sum(part.seconds for part in self.parts)

    @property
    def attributed(self) -> float:
        """Return the share of the parts' seconds that is on lines of the model."""
        return sum(part.seconds for part in self.parts if part.lines) / self.total

    def by_line(self) -> list[tuple[str, float]]:
        """Return seconds by line, the slowest first. Lines in one row were fused."""
        return self._summed(
            lambda part: " and ".join(str(line) for line in part.lines) or "on no line"
        )

    def by_module(self) -> list[tuple[str, float]]:
        """Return seconds by module (``layers.0.norm``), the slowest first."""
        return self._summed(lambda part: " and ".join(part.modules) or "in no module")

    def by_operator(self) -> list[tuple[str, float]]:
        """Return seconds by operator, with all its calls.

        Operators in one row were fused.
        """
        return self._summed(lambda part: part.what)

    def by_place(self) -> list[tuple[str, float]]:
        """Return the seconds of each delegate and of the host."""
        return self._summed(lambda part: part.place)

    def _summed(self, key: Callable[[Part], str]) -> list[tuple[str, float]]:
        total: dict[str, float] = {}
        for part in self.parts:
            total[key(part)] = total.get(key(part), 0.0) + part.seconds
        return sorted(total.items(), key=lambda row: -row[1])

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of plain values."""
        figures = {
            "method": self.method,
            "repeats": self.repeats,
            "seconds": self.seconds,
            "fastest": self.fastest,
            "slowest": self.slowest,
            "plain_seconds": self.plain_seconds,
            "watching": self.watching,
            "first_seconds": self.first_seconds,
            "load": self.load,
            "total": self.total,
            "attributed": self.attributed,
        }
        tables = {
            "lines": self.by_line(),
            "modules": self.by_module(),
            "operators": self.by_operator(),
            "places": self.by_place(),
        }
        rows = {
            name: [{"name": n, "seconds": s} for n, s in table]
            for name, table in tables.items()
        }
        parts = [
            {
                "what": p.what,
                "where": p.where,
                "seconds": p.seconds,
                "lines": [
                    line if isinstance(line, str) else line.place for line in p.lines
                ],
                "modules": list(p.modules),
                "nodes": list(p.nodes),
            }
            for p in self.parts
        ]
        return {
            **figures,
            **rows,
            "parts": parts,
            "expected": {k: dict(v) for k, v in self.expected.items()},
        }

    def tables(self) -> list[tuple[str, list[tuple[str, float]]]]:
        """Return each table with its heading.

        Lines and modules are left out if a file has none.
        """
        lined = (
            [("line", self.by_line())] if any(part.lines for part in self.parts) else []
        )
        lined += (
            [("module", self.by_module())]
            if any(part.modules for part in self.parts)
            else []
        )
        return [*lined, ("operator", self.by_operator()), ("place", self.by_place())]

    def facts(self) -> list[str]:
        """Return the facts about the whole call, a sentence each."""
        busy = (
            ""
            if self.load is None
            else f"; the machine's load is {self.load:.1f} a processor"
        )
        lines = [
            (
                f"method {self.method}: {_ms(self.seconds)}, {self.attributed:.0%} of"
                " it on lines of the program"
            ),
            (
                f"{_ms(self.fastest)} to {_ms(self.slowest)} in {self.repeats} calls;"
                f" {_ms(self.plain_seconds)} without profiling,"
                f" {_ms(self.first_seconds)} in the first call{busy}"
            ),
        ]
        if self.total > OVERLAPS * self.seconds:
            lines.append(
                "a runtime ran operators at the same time: their times add up to"
                f" {_ms(self.total)}"
            )
        for delegate, amounts in self.expected.items():
            shown = ", ".join(
                f"{amount:,.0f} {name}" for name, amount in amounts.items()
            )
            lines.append(
                f"{delegate}: estimated by its compiler, not measured: {shown}"
            )
        return lines

    def __str__(self) -> str:
        lines = self.facts()
        for title, table in self.tables():
            lines.append(f"by {title}:")
            lines += [
                f"  {_ms(s):>10}  {s / self.total:4.0%}  {shorten(name)}"
                for name, s in table[:_LISTED]
            ]
            lines += (
                [f"  and {len(table) - _LISTED} more"] if len(table) > _LISTED else []
            )
        # a line end in a name begins no line here
        return "\n".join(map(printable, lines))


def shorten(name: str) -> str:
    """Shorten a name: names in a file may have any length."""
    return name if len(name) <= _NAME else f"{name[:_NAME]}… ({len(name)} characters)"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3f} ms"


class _CallTimes(NamedTuple):
    """The times of a delegate's call, which lasted ``seconds`` between two moments.

    ``begin``: when the call of the program began.
    """

    begin: float
    after: float
    before: float
    seconds: float

    def whole(self, spent: Spent) -> Interval:
        """Return the interval of the call.

        ``seconds`` omits checks between the engine's work and the copies of its
        results, so the first kernel may have begun earlier.
        """
        kernels = map(self.of_kernel, spent.values())
        starts = [start for start, _ in chain.from_iterable(kernels)]
        start = self.before - self.seconds - self.begin
        return min([start, *starts]), self.before - self.begin

    def of_kernel(self, amounts: Mapping[str, Any]) -> tuple[Interval, ...]:
        """Return when a kernel ran.

        Returns () if its engine does not measure that, or has another clock.
        """
        measured = amounts.get("intervals", ())
        if not all(self.after <= s and e <= self.before for s, e in measured):
            return ()
        return tuple((s - self.begin, e - self.begin) for s, e in measured)


class _Clock:
    """A ``Timer``: the time between two values belongs to the later one.

    The time of the clock itself is left out.
    """

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.own = 0.0
        self._begin = 0.0
        self._since = 0.0
        self._inside = 0.0
        self._path: list[str] = []
        # delegate -> what adds the parts of its last call
        self._unread: dict[str, Callable[[], None]] = {}

    def begin(self, values: Mapping[Node, Any]) -> None:
        self._path = []
        self._unread = {}
        self.parts = []
        self.own = 0.0
        self._inside = 0.0
        self._since = time.perf_counter()
        self._begin = self._since

    def see(self, node: Node, value: Any) -> None:
        now = time.perf_counter()
        seconds = max(now - self._since - self._inside, 0.0)
        where = f"host, in {'.'.join(self._path)}" if self._path else "host"
        if node.target is CALL_DELEGATE:  # its runtime has reported the rest
            what = "calling a delegate"
            nodes = []
        else:
            what = operator_name(node)
            nodes = [node]
        ran = (self._since - self._begin, now - self._begin)
        self.parts.append(Part.of(what, where, seconds, nodes, intervals=(ran,)))
        self._inside = 0.0
        self._since = time.perf_counter()
        self.own += self._since - now

    def enter(self, owner: Node, module: Any, inputs: Sequence[Any]) -> None:
        self._path.append(str(owner.target))

    def leave(self) -> None:
        self._path.pop()

    def inside(self, delegate: DelegateInfo, values: Any) -> None: ...
    def end(self) -> None: ...

    def finish(self) -> list[Part]:
        """Return the parts of the call that has ended."""
        for add in self._unread.values():
            add()
        self._unread = {}
        return self.parts

    def spent(
        self, delegate: DelegateInfo, seconds: float, read: Callable[[], Spent]
    ) -> None:
        start = time.perf_counter()
        # Reading evicts the rest of the call from the processor's caches, which makes
        # it three times slower. So read at the end of the call, or before the next call
        # of the delegate in a loop.
        if (before := self._unread.pop(delegate.name, None)) is not None:
            before()
        ran = _CallTimes(self._begin, self._since, start, seconds)
        self._unread[delegate.name] = partial(self._add, delegate, ran, read)
        taken = time.perf_counter() - start
        self.own += taken
        self._inside += seconds + taken

    def _add(
        self, delegate: DelegateInfo, ran: _CallTimes, read: Callable[[], Spent]
    ) -> None:
        """Add the parts of a call of a delegate."""
        spent = read()
        call = ran.whole(spent)
        reported = 0.0
        name = delegate.name
        by_operators = False
        nodes: dict[int, list[Node]] = {}
        # those that one operator was decomposed to have its handle together
        for node in delegate.nodes:
            nodes.setdefault(node.meta.get("debug_handle", -1), []).append(node)
        handles = delegate.debug_handle_map
        for identifier, amounts in spent.items():
            if "seconds" in amounts:
                of_all = (
                    handle
                    for one in fused(identifier)
                    for handle in handles.get(one, ())
                )
                of = [
                    node
                    for handle in dict.fromkeys(of_all)
                    for node in nodes.get(handle, ())
                ]
                if isinstance(identifier, Border):
                    of = _at_border(delegate, identifier)
                else:
                    by_operators = True
                reported += amounts["seconds"]
                what = " and ".join(dict.fromkeys(map(operator_name, of))) or _unnamed(
                    identifier
                )
                self.parts.append(
                    Part.of(
                        what,
                        name,
                        amounts["seconds"],
                        of,
                        identifier=identifier,
                        intervals=ran.of_kernel(amounts),
                        call=call,
                    )
                )
        # a delegate of one line needs no runtime that tells its operators
        lone = (
            delegate.nodes
            if not by_operators and len(_lines(delegate.nodes)) == 1
            else ()
        )
        self.parts.append(
            Part.of(
                _REST,
                name,
                max(ran.seconds - reported, 0.0),
                lone,
                call=call,
            )
        )


class _FileClock:
    """A ``FileTimer`` that times the instructions of a program in a file."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a call."""
        self.own = 0.0
        self._inside = 0.0
        self._parts = list[Part]()
        # calls of delegates that still lack their step
        self._unseen: list[tuple[str, _CallTimes, Spent]] = []
        self._since = time.perf_counter()
        self._begin = self._since

    def spent(self, backend_id: str, seconds: float, read: Callable[[], Spent]) -> None:
        start = time.perf_counter()
        ran = _CallTimes(self._begin, self._since, start, seconds)
        self._unseen.append((backend_id, ran, read()))
        taken = time.perf_counter() - start
        self.own += taken
        self._inside += seconds + taken

    def see(self, step: Step) -> None:
        now = time.perf_counter()
        seconds = max(now - self._since - self._inside, 0.0)
        intervals = ((self._since - self._begin, now - self._begin),)
        if step.inside is None:
            what = " and ".join(step.origin.operators) or step.name
            lines = step.origin.lines
            self._parts.append(Part(what, "host", seconds, lines, intervals=intervals))
        else:
            what = "calling a delegate"
            self._parts.append(Part(what, "host", seconds, intervals=intervals))
            self._place(step.name, step.inside)
        self._inside = 0.0
        self._since = time.perf_counter()
        self.own += self._since - now

    def _place(self, name: str, inside: Mapping[str, Origin]) -> None:
        """Make parts of the delegates' times; ``name`` is the delegates' name, if
        known.
        """
        every = tuple(
            dict.fromkeys(line for origin in inside.values() for line in origin.lines)
        )
        for backend_id, ran, spent in self._unseen:
            where = name or backend_id
            call = ran.whole(spent)
            reported = 0.0
            for identifier, amounts in spent.items():
                if "seconds" in amounts:
                    origins = [
                        inside.get(str(one), Origin()) for one in fused(identifier)
                    ]
                    reported += amounts["seconds"]
                    operators = dict.fromkeys(
                        name for origin in origins for name in origin.operators
                    )
                    lines = tuple(
                        dict.fromkeys(
                            line for origin in origins for line in origin.lines
                        )
                    )
                    what = " and ".join(operators) or _unnamed(identifier)
                    self._parts.append(
                        Part(
                            what,
                            where,
                            amounts["seconds"],
                            lines,
                            identifier=identifier,
                            intervals=ran.of_kernel(amounts),
                            call=call,
                        )
                    )
            lone = every if not reported and len(every) == 1 else ()
            self._parts.append(
                Part(
                    _REST,
                    where,
                    max(ran.seconds - reported, 0.0),
                    lone,
                    call=call,
                )
            )
        self._unseen = []

    def finish(self) -> list[Part]:
        """Return the parts of the call that has ended."""
        self._place("", {})
        return self._parts


def _at_border(delegate: DelegateInfo, border: Border) -> list[Node]:
    """Return the node of a delegate that computes an output, or the only reader of an
    input.
    """
    arguments = delegate.outputs if border.side == "output" else delegate.inputs
    if not 0 <= border.place < len(arguments):
        return []
    name = arguments[border.place].name
    if border.side == "output":
        return [node for node in delegate.nodes if node.name == name]
    graph = delegate.module.original_module.graph
    readers = [
        user.name
        for node in graph.nodes
        if node.op == "placeholder" and node.name == name
        for user in node.users
    ]
    return [node for node in delegate.nodes if readers == [node.name]]


def _unnamed(identifier: Any) -> str:
    """Describe a delegate's operator without a known node.

    Without an ``identifier``, it is no operator.
    """
    if isinstance(identifier, Border):
        return f"handing over {identifier}"
    return "on no operator" if identifier is None else f"operator {identifier}"


def _lines(nodes: Iterable[Node]) -> tuple[Source, ...]:
    return tuple(
        dict.fromkeys(source for node in nodes if (source := line_of(node)) is not None)
    )


def _modules(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return the innermost module of each node, by its path in the model."""
    stacks = (list(node.meta.get("nn_module_stack", {}).values()) for node in nodes)
    paths = (
        stack[-1][0].removeprefix("L['self'].") or "the model itself"
        for stack in stacks
        if stack
    )
    return tuple(dict.fromkeys(paths))


def profile_program(
    lowered: LoweredProgram,
    *args: Any,
    repeats: int = 10,
    method: str | None = None,
    **kwargs: Any,
) -> ProgramProfile:
    """Call a method ``repeats`` times, and measure where the median call's time goes.

    Watched and plain calls alternate. Each kind has an instance of the program with its
    initial state; neither ``lowered`` nor the inputs are written. Raises InputError if
    ``repeats`` is not positive, and if the model fails on these inputs.
    """
    _expect_positive(repeats)
    clock = _Clock()
    watched = lowered.observed(clock, method)
    name = lowered.chosen_method(method)
    plain = lowered.instance().method(name)
    writes = bool(lowered.exported_program(name).graph_signature.user_inputs_to_mutate)

    def timed(run: Callable[..., Any]) -> float:
        """Return the seconds of a call.

        If the program writes its inputs, they are copied.
        """
        with call_of_model(name):
            return (
                _timed(run, *copy.deepcopy((args, kwargs)))
                if writes
                else _timed(run, args, kwargs)
            )

    expected = {
        d.name: _expected(d)
        for d in lowered.delegates
        if d.method == name and d.figures
    }
    return _profile_calls(
        name, repeats, clock, partial(timed, watched), partial(timed, plain), expected
    )


def profile_file(
    file: FileFormat,
    *args: Any,
    repeats: int = 10,
    method: str | None = None,
    **kwargs: Any,
) -> ProgramProfile:
    """Profile a method of the program in a file, like ``profile_program``.

    Formats with ``profile`` time each instruction, and name its lines if the file has
    them. For other formats, only delegates are timed. Raises InputError if ``repeats``
    is not positive, and the errors of loading and calling the file.
    """
    _expect_positive(repeats)
    clock = _FileClock()
    plain = file.load()
    watched = file.load(timer=clock)
    name = method or plain.only_method

    def timed(run: Callable[..., Any]) -> float:
        """Return the seconds of a call.

        A file may write its inputs without declaring it, so each call has a copy.
        """
        given = copy.deepcopy((args, kwargs))
        clock.begin()
        return _timed(run, *given)

    watch, call = (partial(timed, loaded.method(name)) for loaded in (watched, plain))
    return _profile_calls(name, repeats, clock, watch, call, {})


def _expect_positive(repeats: int) -> None:
    if type(repeats) is not int or repeats < 1:
        raise InputError(
            "input-invalid", f"repeats is a positive number of calls, not {repeats!r}"
        )


def _profile_calls(
    method: str,
    repeats: int,
    clock: _Clock | _FileClock,
    watched: Callable[[], float],
    plain: Callable[[], float],
    expected: Mapping[str, Mapping[str, float]],
) -> ProgramProfile:
    """Return the profile of ``repeats`` calls with ``clock``, which alternate with
    others.

    Both functions return their seconds.
    """
    first = plain()
    watched()
    runs = []
    others = []
    for _ in range(repeats):
        seconds = watched()
        runs.append((seconds - clock.own, clock.finish()))
        others.append(plain())
    watching = statistics.median(
        run[0] / other for run, other in zip(runs, others, strict=True)
    )
    runs.sort(key=lambda run: run[0])
    seconds, parts = runs[(len(runs) - 1) // 2]
    rest = Part(
        "between the calls",
        "host",
        max(seconds - sum(part.seconds for part in parts), 0.0),
    )
    times = seconds, runs[0][0], runs[-1][0], statistics.median(others), watching, first
    return ProgramProfile(
        method, repeats, *times, load_of_machine(), (*parts, rest), expected
    )


def _expected(delegate: DelegateInfo) -> dict[str, float]:
    total: dict[str, float] = {}
    for amounts in delegate.figures.values():
        for name, amount in amounts.items():
            total[name] = total.get(name, 0) + amount
    return total


def _timed(call: Callable[..., Any], args: Any, kwargs: Any) -> float:
    start = time.perf_counter()
    call(*args, **kwargs)
    return time.perf_counter() - start


def load_of_machine() -> float | None:
    """Return the average number of ready processes per processor in the last minute, if
    known.
    """
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except (AttributeError, OSError):
        return None
