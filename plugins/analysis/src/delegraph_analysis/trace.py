"""Write profiles in the Trace Event Format, which Perfetto and Chrome open.

A trace shows events on parallel tracks. Host operators have one track. Each delegate
has a track with its calls, and with the kernels in them. Kernels without a measured
start get a track of their own: there they follow one another from the start of the
call, and the argument "start" of these events explains it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Any

from delegraph.runtime import Border
from delegraph_programs import Source

from .profiling import Interval, Part, ProgramProfile, shorten

_LINE = 60
"""The most characters of a ``file:line`` in the name of an event."""
_PLACED = (
    "not measured: the engine reports only durations, which follow one another from the"
    " start of the call"
)


def perfetto_trace(profiles: Sequence[ProgramProfile]) -> dict[str, Any]:
    """Return the median calls of ``profiles`` as a trace, to be written as JSON.

    Each profile is a process of the trace. Its time begins with 0.
    """
    events: list[dict[str, Any]] = []
    for process, profile in enumerate(profiles, 1):
        tracks = _Tracks(process, f"method {profile.method}")
        tracks.add("host", _host_events(profile.parts))
        # delegate -> interval of a call -> its parts
        delegates: dict[str, dict[Interval, list[Part]]] = {}
        for part in profile.parts:
            if part.call is not None:
                calls = delegates.setdefault(part.where, {})
                calls.setdefault(part.call, []).append(part)
        for name, calls in delegates.items():
            tracks.add(name, _delegate_events(name, calls))
            tracks.add(f"{name}, only durations", _placed_events(calls))
        events += tracks.events
    facts = {profile.method: "; ".join(profile.facts()) for profile in profiles}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}


class _Tracks:
    """The events of one process of a trace, on its tracks."""

    def __init__(self, process: int, name: str) -> None:
        self.events: list[dict[str, Any]] = []
        self._process = process
        self._track = 0
        self._describe("process_name", name=name)

    def add(self, name: str, events: Iterable[dict[str, Any]]) -> None:
        """Add events as a track ``name``.

        On a track, events must be nested or apart from each other. An event that
        partly overlaps with another gets a further track.
        """
        lanes: list[list[float]] = []  # see ``_lane``
        first = self._track + 1
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            end = round(event["ts"] + event["dur"], 3)
            lane = _lane(lanes, event["ts"], end)
            if first + lane > self._track:
                self._track += 1
                shown = f"{name}, at the same time" if lane else name
                self._describe("thread_name", name=shorten(shown))
                self._describe("thread_sort_index", sort_index=self._track)
            self.events.append({**event, "pid": self._process, "tid": first + lane})

    def _describe(self, kind: str, **args: Any) -> None:
        """Add metadata of the process, or of the current track."""
        fact = {"name": kind, "ph": "M", "pid": self._process, "tid": self._track}
        self.events.append({**fact, "args": args})


def _lane(lanes: list[list[float]], start: float, end: float) -> int:
    """Put an event on the first track that has a place for it; return the track's number.

    ``lanes`` has for each track the ends of its open events, the innermost last. Events
    come in the order of their starts.
    """
    for number, ends in enumerate(lanes):
        while ends and ends[-1] <= start:
            ends.pop()
        if not ends or end <= ends[-1]:
            ends.append(end)
            return number
    lanes.append([end])
    return len(lanes) - 1


def _host_events(parts: Iterable[Part]) -> Iterator[dict[str, Any]]:
    for part in parts:
        if part.call is None:
            for interval in part.intervals:
                yield _event(part, "host", interval)


def _delegate_events(
    name: str, calls: dict[Interval, list[Part]]
) -> Iterator[dict[str, Any]]:
    """Yield the calls of a delegate, and the kernels with measured starts."""
    for call, parts in calls.items():
        yield _timed(name, "delegate", call)
        for part in parts:
            for interval in part.intervals:
                yield _event(part, "kernel", interval)


def _placed_events(calls: dict[Interval, list[Part]]) -> Iterator[dict[str, Any]]:
    """Yield the kernels without measured starts."""
    for call, parts in calls.items():
        start = call[0]
        for part in parts:
            if part.is_kernel and not part.intervals and part.seconds:
                interval = (start, start + part.seconds)
                yield _event(part, "kernel", interval, start=_PLACED)
                start = interval[1]


def _event(
    part: Part, category: str, interval: Interval, **further: str
) -> dict[str, Any]:
    """Return the event of a part. ``further``: more of its arguments."""
    args: dict[str, Any] = dict(further)
    if part.where != part.place:  # a branch or a loop body on the host
        args["where"] = part.where
    if isinstance(part.identifier, Border):
        args["hands over"] = str(part.identifier)
    for key, values in (
        ("lines", part.lines),
        ("modules", part.modules),
        ("nodes", part.nodes),
    ):
        if values:
            args[key] = [shorten(str(value)) for value in values]
    name = part.what
    if len(part.lines) == 1:
        place = _place(part.lines[0])
        if len(place) <= _LINE:
            name += f" ({place})"
    return _timed(name, category, interval, **args)


def _place(line: Source | str) -> str:
    """Return ``file:line`` of a line without its folders."""
    place = line.partition(", in ")[0] if isinstance(line, str) else line.place
    return PurePath(place).name


def _timed(name: str, category: str, interval: Interval, **args: Any) -> dict[str, Any]:
    """Return a complete event, in microseconds with three decimals."""
    start = round(1e6 * interval[0], 3)
    end = round(1e6 * interval[1], 3)
    return {
        "name": shorten(name),
        "cat": category,
        "ph": "X",
        "ts": start,
        "dur": round(end - start, 3),
        "args": args,
    }
