"""Where the time of a call goes: by line of the user's program, by module and by delegate, host operators included.

Nothing is spread: what several lines were fused into is counted under all of them together, and what belongs to no
line is shown as such.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from delegraph import LoweredProgram
from delegraph.delegates import DelegateInfo
from delegraph.errors import InputError
from delegraph.exported_program import CALL_DELEGATE
from delegraph.io.escape import printable
from delegraph.runtime import Spent
from delegraph.source import Source, source_of
from torch.fx import Node

_LISTED = 20
"""Rows of a table that the text has."""


@dataclass(frozen=True)
class Part:
    """A part of a call: what it is, where it runs (``host`` or the name of a delegate), and its seconds.

    ``lines`` and ``modules`` are those that it was made from; none of them if that is not known.
    """

    what: str
    where: str
    seconds: float
    lines: tuple[Source, ...] = ()
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProgramProfile:
    """The call of median length among ``repeats``, after one that is not counted (``first_seconds``), in its parts.

    ``seconds`` is the whole call as its caller sees it, ``fastest`` and ``slowest`` the ends of all. ``plain_seconds``
    is the median of calls that are not watched, which are made in turns with the others: what watching adds is the
    difference. ``load`` is how many processes wanted a processor on average in the last minute, for each processor.
    """

    method: str
    repeats: int
    seconds: float
    fastest: float
    slowest: float
    plain_seconds: float
    first_seconds: float
    load: float | None
    parts: tuple[Part, ...]
    expected: Mapping[str, Mapping[str, float]]

    @property
    def attributed(self) -> float:
        """The share of the call's seconds that is on lines of the user's program."""
        return sum(part.seconds for part in self.parts if part.lines) / self.seconds

    def by_line(self) -> list[tuple[str, float]]:
        """Seconds by line, the slowest first; several lines in one row were fused."""
        return self._summed(lambda part: " and ".join(str(line) for line in part.lines) or "on no line")

    def by_module(self) -> list[tuple[str, float]]:
        """Seconds by module (``layers.0.norm``), the slowest first."""
        return self._summed(lambda part: " and ".join(part.modules) or "in no module")

    def by_place(self) -> list[tuple[str, float]]:
        """Seconds by delegate, and of the host."""
        return self._summed(lambda part: part.where)

    def _summed(self, key: Callable[[Part], str]) -> list[tuple[str, float]]:
        total: dict[str, float] = {}
        for part in self.parts:
            total[key(part)] = total.get(key(part), 0.0) + part.seconds
        return sorted(total.items(), key=lambda row: -row[1])

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values."""
        figures = {
            "method": self.method,
            "repeats": self.repeats,
            "seconds": self.seconds,
            "fastest": self.fastest,
            "slowest": self.slowest,
            "plain_seconds": self.plain_seconds,
            "first_seconds": self.first_seconds,
            "load": self.load,
            "attributed": self.attributed,
        }
        tables = {"lines": self.by_line(), "modules": self.by_module(), "places": self.by_place()}
        rows = {name: [{"name": n, "seconds": s} for n, s in table] for name, table in tables.items()}
        parts = [
            {"what": p.what, "where": p.where, "seconds": p.seconds, "lines": [line.place for line in p.lines]}
            for p in self.parts
        ]
        return {**figures, **rows, "parts": parts, "expected": {k: dict(v) for k, v in self.expected.items()}}

    def __str__(self) -> str:
        busy = "" if self.load is None else f"; the machine's load is {self.load:.1f} a processor"
        lines = [
            f"method {self.method}: {_ms(self.seconds)}, {self.attributed:.0%} of it on lines of the program",
            f"{_ms(self.fastest)} to {_ms(self.slowest)} in {self.repeats} calls; {_ms(self.plain_seconds)} where "
            f"nobody watches, {_ms(self.first_seconds)} the first{busy}",
        ]
        for title, table in (("line", self.by_line()), ("module", self.by_module()), ("place", self.by_place())):
            lines.append(f"by {title}:")
            lines += [f"  {_ms(s):>10}  {s / self.seconds:4.0%}  {name}" for name, s in table[:_LISTED]]
            lines += [f"  and {len(table) - _LISTED} more"] if len(table) > _LISTED else []
        for delegate, amounts in self.expected.items():
            told = ", ".join(f"{amount:,.0f} {name}" for name, amount in amounts.items())
            lines.append(f"{delegate}: estimated by its compiler, not measured: {told}")
        return "\n".join(map(printable, lines))  # a line end in a name begins no line here


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3f} ms"


class _Clock:
    """A ``Timer``: the time between two values is that of the later one; what the clock itself takes is left out."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.own, self._since, self._inside = 0.0, 0.0, 0.0

    def begin(self, values: Mapping[Node, Any]) -> None:
        self.parts, self.own, self._inside, self._since = [], 0.0, 0.0, time.perf_counter()

    def see(self, node: Node, value: Any) -> None:
        now = time.perf_counter()
        seconds = max(now - self._since - self._inside, 0.0)
        if node.target is CALL_DELEGATE:  # its runtime has told the rest
            self.parts.append(Part("calling a delegate", "host", seconds))
        else:
            self.parts.append(Part(str(node.target), "host", seconds, _lines([node]), _modules([node])))
        self._inside, self._since = 0.0, time.perf_counter()
        self.own += self._since - now

    def enter(self, owner: Node, module: Any, inputs: Sequence[Any]) -> None: ...
    def leave(self) -> None: ...
    def inside(self, delegate: DelegateInfo, values: Any) -> None: ...
    def end(self) -> None: ...

    def spent(self, delegate: DelegateInfo, seconds: float, read: Callable[[], Spent]) -> None:
        start = time.perf_counter()
        spent = read()
        nodes = {n.meta["debug_handle"]: n for n in delegate.nodes if "debug_handle" in n.meta}
        handles, told = delegate.debug_handle_map, 0.0
        for identifier, amounts in spent.items():
            if "seconds" in amounts:
                of = [nodes[handle] for handle in handles.get(identifier, ()) if handle in nodes]
                told += amounts["seconds"]
                what = "on no operator" if identifier is None else str(identifier)
                self.parts.append(Part(what, delegate.name, amounts["seconds"], _lines(of), _modules(of)))
        lone = _lines(delegate.nodes) if not told else ()
        is_whole = len(lone) == 1  # a delegate of one line needs no runtime that tells its operators
        modules = _modules(delegate.nodes) if is_whole else ()
        rest = max(seconds - told, 0.0)
        self.parts.append(Part("the rest of the delegate", delegate.name, rest, lone if is_whole else (), modules))
        taken = time.perf_counter() - start
        self.own += taken
        self._inside += seconds + taken


def _lines(nodes: Iterable[Node]) -> tuple[Source, ...]:
    return tuple(dict.fromkeys(source for node in nodes if (source := source_of(node)) is not None))


def _modules(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The innermost module of each node, by its path in the model."""
    stacks = (list(node.meta.get("nn_module_stack", {}).values()) for node in nodes)
    paths = (stack[-1][0].removeprefix("L['self'].") or "the model itself" for stack in stacks if stack)
    return tuple(dict.fromkeys(paths))


def profile_program(
    lowered: LoweredProgram, *args: Any, repeats: int = 10, method: str | None = None, **kwargs: Any
) -> ProgramProfile:
    """Call a method of ``lowered`` ``repeats`` times on these inputs, and say where the time of the median call goes.

    Calls that are watched and calls that are not are made in turns. Raises InputError if ``repeats`` is not positive,
    and what a call raises.
    """
    if type(repeats) is not int or repeats < 1:
        raise InputError("input-invalid", f"repeats is a positive number of calls, not {repeats!r}")
    name = method or ("forward" if "forward" in lowered.methods else lowered.methods[0])
    clock = _Clock()
    watched, plain = lowered.observed(clock, name), lowered.method(name)
    first = _timed(plain, args, kwargs)
    _timed(watched, args, kwargs)
    runs, others = [], []
    for _ in range(repeats):
        seconds = _timed(watched, args, kwargs)
        runs.append((seconds - clock.own, clock.parts))
        others.append(_timed(plain, args, kwargs))
    runs.sort(key=lambda run: run[0])
    seconds, parts = runs[(len(runs) - 1) // 2]
    rest = Part("between the calls", "host", max(seconds - sum(part.seconds for part in parts), 0.0))
    return ProgramProfile(
        name,
        repeats,
        seconds,
        runs[0][0],
        runs[-1][0],
        statistics.median(others),
        first,
        load_of_machine(),
        (*parts, rest),
        {d.name: _expected(d) for d in lowered.delegates if d.method == name and d.figures},
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
    """How many processes wanted a processor on average in the last minute, for each processor; None if unknown."""
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except (AttributeError, OSError):
        return None
