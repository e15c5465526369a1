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
from operator import attrgetter
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
"""The time of a delegate's call that its runtime did not report."""
_NAME = 1000
"""Longer names are cut after this many characters."""
OVERLAPS = 1.05
"""If the parts take this many times as long as the call, they ran at the same time."""


Interval = tuple[float, float]
"""Start and end, in seconds since the call of the program began."""


@dataclass(frozen=True)
class Part:
    """A part of a call, such as one operator: where it ran, and for how many seconds.

    ``what`` names its operators, or describes it otherwise, such as the rest of a
    delegate. ``where`` is ``host``, ``host, in PATH`` for a branch or loop body, or the
    name of a delegate. The part was made from ``lines`` (text, for a program in a
    file), ``modules`` and ``nodes`` (names in the graph of ``where``), if known.
    ``identifier`` is the debug identifier from a delegate's runtime, or a tuple of
    fused ones, or None. ``intervals``: when it ran; () if that was not measured.
    ``call``: when the call of its delegate ran; None on the host.
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
        """Return a part with the lines, modules and names of ``nodes``."""
        lines = _lines(nodes)
        modules = _modules(nodes)
        names = tuple(node.name for node in nodes)
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
    the median of calls without a clock; both kinds alternate. ``watching`` is the
    slowdown by the clock: the median ratio of a call to the plain one after it.
    ``load`` is the number of processes per processor that were ready to run,
    averaged over the last minute. ``expected``: delegate -> the estimates of its
    compiler by name, such as cycles.
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
        rows = {}
        for title, table in tables.items():
            rows[title] = [{"name": name, "seconds": s} for name, s in table]
        parts = []
        for part in self.parts:
            lines = [
                line if isinstance(line, str) else line.place for line in part.lines
            ]
            parts.append(
                {
                    "what": part.what,
                    "where": part.where,
                    "seconds": part.seconds,
                    "lines": lines,
                    "modules": list(part.modules),
                    "nodes": list(part.nodes),
                }
            )
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
        tables = []
        if any(part.lines for part in self.parts):
            tables.append(("line", self.by_line()))
        if any(part.modules for part in self.parts):
            tables.append(("module", self.by_module()))
        return [*tables, ("operator", self.by_operator()), ("place", self.by_place())]

    def facts(self) -> list[str]:
        """Return the facts about the whole call, a sentence each."""
        lines = [
            (
                f"method {self.method}: {_ms(self.seconds)}, {self.attributed:.0%} of"
                " it on lines of the program"
            ),
            (
                f"{_ms(self.fastest)} to {_ms(self.slowest)} in {self.repeats} calls;"
                f" {_ms(self.plain_seconds)} without profiling,"
                f" {_ms(self.first_seconds)} in the first call{load_text(self.load)}"
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
            for name, seconds in table[:_LISTED]:
                share = seconds / self.total
                lines.append(f"  {_ms(seconds):>10}  {share:4.0%}  {shorten(name)}")
            if len(table) > _LISTED:
                lines.append(f"  and {len(table) - _LISTED} more")
        # escape line ends in names, which would break the table
        return "\n".join(map(printable, lines))


def shorten(name: str) -> str:
    """Cut a name that is too long; names in a file may have any length."""
    return name if len(name) <= _NAME else f"{name[:_NAME]}… ({len(name)} characters)"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3f} ms"


class _CallTimes(NamedTuple):
    """When a delegate was called, by ``time.perf_counter()``.

    ``program_start``: the start of the program's call. The delegate ran for ``seconds``
    within ``earliest`` and ``latest``: after the previous value of the program was
    seen, and before the clock received these seconds.
    """

    program_start: float
    earliest: float
    latest: float
    seconds: float

    def whole(self, spent: Spent) -> Interval:
        """Return the interval of the call.

        It ends at ``latest`` and has the length ``seconds``, or begins with its first
        kernel if that was earlier. ``seconds`` omits checks between the engine's work
        and the copies of its results.
        """
        end = self.latest - self.program_start
        start = end - self.seconds
        for amounts in spent.values():
            for kernel_start, _ in self.of_kernel(amounts):
                start = min(start, kernel_start)
        return start, end

    def of_kernel(self, amounts: Mapping[str, Any]) -> tuple[Interval, ...]:
        """Return when a kernel ran.

        Returns () if its engine does not measure that. An interval outside of the call
        shows that the engine has another clock: then the result is also ().
        """
        intervals = []
        for start, end in amounts.get("intervals", ()):
            if start < self.earliest or end > self.latest:
                return ()
            intervals.append((start - self.program_start, end - self.program_start))
        return tuple(intervals)


class _Clock:
    """A ``Timer`` that collects the parts of a call.

    An operator's time is the time since the previous value of the program was seen,
    without the time of delegates and of the clock itself.
    """

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.own = 0.0
        """Seconds that the clock itself took in this call."""
        self._begin = 0.0
        self._since = 0.0
        """When the previous value was seen."""
        self._inside = 0.0
        """Seconds since ``_since`` that are not the operator's: of delegates and the clock."""
        self._path: list[str] = []
        """The branches and loop bodies that are running."""
        self._unread: dict[str, Callable[[], None]] = {}
        """Delegate -> a function that adds the parts of its last call."""

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
        if node.target is CALL_DELEGATE:  # ``spent`` got the delegate's own time
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
        add_previous_call = self._unread.pop(delegate.name, None)
        if add_previous_call is not None:
            add_previous_call()
        ran = _CallTimes(self._begin, self._since, start, seconds)
        self._unread[delegate.name] = partial(self._add, delegate, ran, read)
        taken = time.perf_counter() - start
        self.own += taken
        self._inside += seconds + taken

    def _add(
        self, delegate: DelegateInfo, ran: _CallTimes, read: Callable[[], Spent]
    ) -> None:
        """Add the parts of a call of a delegate: those that its runtime reports, and
        the rest.
        """
        spent = read()
        call = ran.whole(spent)
        reported = 0.0
        reports_operators = False
        for identifier, amounts in spent.items():
            if "seconds" not in amounts:
                continue
            if isinstance(identifier, Border):
                nodes = _at_border(delegate, identifier)
            else:
                reports_operators = True
                nodes = _nodes_of(delegate, identifier)
            names = dict.fromkeys(map(operator_name, nodes))
            part = Part.of(
                " and ".join(names) or _unnamed(identifier),
                delegate.name,
                amounts["seconds"],
                nodes,
                identifier=identifier,
                intervals=ran.of_kernel(amounts),
                call=call,
            )
            self.parts.append(part)
            reported += part.seconds
        # without reported operators, the nodes of the rest are known if all have one line
        rest_nodes: Sequence[Node] = ()
        if not reports_operators and len(_lines(delegate.nodes)) == 1:
            rest_nodes = delegate.nodes
        seconds = max(ran.seconds - reported, 0.0)
        self.parts.append(Part.of(_REST, delegate.name, seconds, rest_nodes, call=call))


class _DelegateCall(NamedTuple):
    """A call of a delegate, and the times that its runtime reports."""

    backend_id: str
    ran: _CallTimes
    spent: Spent


class _FileClock:
    """A ``FileTimer`` that times the instructions of a program in a file, as ``_Clock``
    does for a program's nodes.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a call."""
        self.own = 0.0
        self._inside = 0.0
        self._parts = list[Part]()
        self._unseen: list[_DelegateCall] = []
        """Calls of delegates since the previous step. The next step describes them."""
        self._since = time.perf_counter()
        self._begin = self._since

    def spent(self, backend_id: str, seconds: float, read: Callable[[], Spent]) -> None:
        start = time.perf_counter()
        ran = _CallTimes(self._begin, self._since, start, seconds)
        self._unseen.append(_DelegateCall(backend_id, ran, read()))
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
            self._add_delegates(step.name, step.inside)
        self._inside = 0.0
        self._since = time.perf_counter()
        self.own += self._since - now

    def _add_delegates(self, name: str, inside: Mapping[str, Origin]) -> None:
        """Add the parts of the delegates' calls that no step has described yet.

        ``name``: the delegate's name; "" if unknown. ``inside``: debug identifier ->
        the lines and operators from which it was made.
        """
        all_lines = _lines_of(inside.values())
        for backend_id, ran, spent in self._unseen:
            where = name or backend_id
            call = ran.whole(spent)
            reported = 0.0
            for identifier, amounts in spent.items():
                if "seconds" not in amounts:
                    continue
                origins = [inside.get(str(one), Origin()) for one in fused(identifier)]
                operators: dict[str, None] = {}
                for origin in origins:
                    operators.update(dict.fromkeys(origin.operators))
                part = Part(
                    " and ".join(operators) or _unnamed(identifier),
                    where,
                    amounts["seconds"],
                    _lines_of(origins),
                    identifier=identifier,
                    intervals=ran.of_kernel(amounts),
                    call=call,
                )
                self._parts.append(part)
                reported += part.seconds
            # without reported times, the line of the rest is known if there is only one
            rest_lines = all_lines if not reported and len(all_lines) == 1 else ()
            seconds = max(ran.seconds - reported, 0.0)
            self._parts.append(Part(_REST, where, seconds, rest_lines, call=call))
        self._unseen = []

    def finish(self) -> list[Part]:
        """Return the parts of the call that has ended."""
        self._add_delegates("", {})
        return self._parts


def _lines_of(origins: Iterable[Origin]) -> tuple[Source | str, ...]:
    """Return the lines of several origins, each once."""
    lines = chain.from_iterable(origin.lines for origin in origins)
    return tuple(dict.fromkeys(lines))


def _nodes_of(delegate: DelegateInfo, identifier: Any) -> list[Node]:
    """Return the nodes of a delegate from which an operator of its runtime was made.

    ``identifier``: its debug identifier, or a tuple of fused ones. Each maps to debug
    handles; all nodes of a decomposition have the same handle.
    """
    nodes: dict[int, list[Node]] = {}
    for node in delegate.nodes:
        nodes.setdefault(node.meta.get("debug_handle", -1), []).append(node)
    handles: dict[int, None] = {}
    for one in fused(identifier):
        handles.update(dict.fromkeys(delegate.debug_handle_map.get(one, ())))
    return [*chain.from_iterable(nodes.get(handle, ()) for handle in handles)]


def _at_border(delegate: DelegateInfo, border: Border) -> list[Node]:
    """Return the node of a delegate that computes an output, or the only reader of an
    input.

    Returns [] if the border is unknown, or if an input has several readers.
    """
    arguments = delegate.outputs if border.side == "output" else delegate.inputs
    if not 0 <= border.place < len(arguments):
        return []
    name = arguments[border.place].name
    if border.side == "input":
        readers: list[str] = []
        for node in delegate.module.original_module.graph.nodes:
            if node.op == "placeholder" and node.name == name:
                readers += [user.name for user in node.users]
        if len(readers) != 1:
            return []
        name = readers[0]
    return [node for node in delegate.nodes if node.name == name]


def _unnamed(identifier: Any) -> str:
    """Describe a reported time of a delegate for which no node is known."""
    if isinstance(identifier, Border):
        return f"handing over {identifier}"
    return "on no operator" if identifier is None else f"operator {identifier}"


def _lines(nodes: Iterable[Node]) -> tuple[Source, ...]:
    lines = dict.fromkeys(map(line_of, nodes))
    return tuple(line for line in lines if line is not None)


def _modules(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return the path of each node's innermost module in the model."""
    paths: dict[str, None] = {}
    for node in nodes:
        stack = list(node.meta.get("nn_module_stack", {}).values())
        if stack:
            path = stack[-1][0].removeprefix("L['self'].")
            paths[path or "the model itself"] = None
    return tuple(paths)


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
        given = copy.deepcopy((args, kwargs)) if writes else (args, kwargs)
        with call_of_model(name):
            return _timed(run, *given)

    expected = {}
    for delegate in lowered.delegates:
        if delegate.method == name and delegate.figures:
            expected[delegate.name] = _expected(delegate)
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

    time_watched = partial(timed, watched.method(name))
    time_plain = partial(timed, plain.method(name))
    return _profile_calls(name, repeats, clock, time_watched, time_plain, expected={})


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
    """Return the profile of ``repeats`` calls of ``watched``.

    ``watched`` calls the program with ``clock``, and ``plain`` without it. Both return
    the seconds. Their calls alternate; the first one of each does not count.
    """
    first_seconds = plain()
    watched()
    runs: list[_Run] = []
    plain_seconds: list[float] = []
    for _ in range(repeats):
        seconds = watched()
        runs.append(_Run(seconds - clock.own, clock.finish()))
        plain_seconds.append(plain())
    ratios = [
        run.seconds / plain for run, plain in zip(runs, plain_seconds, strict=True)
    ]
    runs.sort(key=attrgetter("seconds"))
    median = runs[(len(runs) - 1) // 2]
    in_parts = sum(part.seconds for part in median.parts)
    rest = Part("between the calls", "host", max(median.seconds - in_parts, 0.0))
    return ProgramProfile(
        method,
        repeats,
        seconds=median.seconds,
        fastest=runs[0].seconds,
        slowest=runs[-1].seconds,
        plain_seconds=statistics.median(plain_seconds),
        watching=statistics.median(ratios),
        first_seconds=first_seconds,
        load=load_of_machine(),
        parts=(*median.parts, rest),
        expected=expected,
    )


class _Run(NamedTuple):
    """A watched call: its seconds without those of the clock, and its parts."""

    seconds: float
    parts: list[Part]


def _expected(delegate: DelegateInfo) -> dict[str, float]:
    """Return the estimates of a delegate's compiler, summed over its operators."""
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


def load_text(load: float | None) -> str:
    """Return a clause about the machine's load; "" if it is unknown."""
    return "" if load is None else f"; the machine's load is {load:.1f} a processor"
