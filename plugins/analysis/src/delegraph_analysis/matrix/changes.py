"""Compare two runs of a matrix for ``delegraph matrix diff``.

Changes that are smaller than the noise of a measurement are left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from delegraph.io.escape_for_terminal import printable

from ..junit_xml import Case, junit_xml
from .rows import agrees, key_of, share, status, worst_error
from .tables import file_bytes, milliseconds, peak_bytes, why

Row = Mapping[str, Any]
BETTER = "better"
WORSE = "worse"
OTHER = "other"
ALWAYS = ("missing", "failed", "agreement", "delegated")
"""Kinds of changes for the worse that fail ``matrix diff``, unless ``--gate`` names
others.
"""


NOISE = 0.1
"""The share by which a latency may change, if no other limit is given."""
_ONCE = 0.5
"""The share by which lowering time and memory may change: they are measured once."""
_SIZE = 0.01
"""The share by which the size of a file may change."""
_ERROR = 3.0
"""The factor by which errors of values may change, since rounding differs."""


@dataclass(frozen=True)
class Change:
    """A change of one kind in one cell; ``way`` is better, worse or other."""

    model: str
    target: str
    quantize: str
    kind: str
    way: str
    before: str
    after: str
    why: str = ""

    def __str__(self) -> str:
        cell = ", ".join((self.model, self.target, self.quantize))
        text = f"{self.way:6} {cell}: {self.kind} {self.before} -> {self.after}"
        return printable(f"{text}  ({self.why})" if self.why else text)


def changes(
    before: Sequence[Row], after: Sequence[Row], noise: float = NOISE
) -> list[Change]:
    """Return all changes, those for the worse first.

    Cells are matched by model, target and quantization.
    """
    old = {key_of(row): row for row in before}
    new = {key_of(row): row for row in after}
    found = []
    for key in dict.fromkeys([*old, *new]):
        if key not in new:
            lost = _Difference("missing", WORSE, status(old[key]), "no row")
            differences = [lost]
        elif key not in old:
            row = new[key]
            added = _Difference("new", OTHER, "no row", status(row), why(row))
            differences = [added]
        else:
            differences = list(_of_cell(old[key], new[key], noise))
        found += [Change(*key, *difference) for difference in differences]
    ways = (WORSE, BETTER, OTHER)
    return sorted(
        found, key=lambda change: (ways.index(change.way), KINDS.index(change.kind))
    )


class _Difference(NamedTuple):
    """A change without the name of its cell."""

    kind: str
    way: str
    before: str
    after: str
    why: str = ""


def _of_cell(old: Row, new: Row, noise: float) -> Iterator[_Difference]:
    """Yield the changes of one cell. If it failed before or now, only that is compared."""
    failed_before = old["error"] is not None
    fails_now = new["error"] is not None
    if failed_before or fails_now:
        if failed_before != fails_now:
            way = WORSE if fails_now else BETTER
            reason = why(new if fails_now else old)
            yield _Difference("failed", way, status(old), status(new), reason)
        elif old["error"]["code"] != new["error"]["code"]:
            yield _Difference(
                "failed", OTHER, old["error"]["code"], new["error"]["code"], why(new)
            )
        return
    yield from _values(old, new)
    yield from _delegation(old, new)
    yield from _size(old, new)
    if _machine(old) == _machine(new):
        yield from _latency(old, new, noise)
        yield from _single_figure(
            "lowering",
            _lowering(old),
            _lowering(new),
            share=_ONCE,
            least=0.5,
            shown=lambda seconds: f"{seconds:.2f} s of CPU",
        )
        yield from _single_figure(
            "memory",
            peak_bytes(old),
            peak_bytes(new),
            share=_ONCE,
            least=32e6,
            shown=lambda size: f"{size / 1e6:.0f} MB",
        )


def _values(old: Row, new: Row) -> Iterator[_Difference]:
    """Compare the agreement with eager, then the largest error."""
    agreed = agrees(old)
    agreeing = agrees(new)
    before = worst_error(old)
    after = worst_error(new)
    shown_before = "-" if before is None else f"{before:.1e}"
    shown_after = "-" if after is None else f"{after:.1e}"
    if agreed != agreeing:
        words = {True: "agrees", False: "differs", None: "not compared"}
        way = BETTER if agreeing else WORSE
        if agreed is None:
            way = OTHER
        reason = new["not_run"] or f"error {shown_before} -> {shown_after}"
        yield _Difference("agreement", way, words[agreed], words[agreeing], reason)
        return
    if before is None or after is None:
        return
    if max(before, after) > _ERROR * max(min(before, after), 1e-6):
        way = WORSE if after > before else BETTER
        yield _Difference("error", way, shown_before, shown_after)


def _delegation(old: Row, new: Row) -> Iterator[_Difference]:
    """Compare the share of delegated operators, then the number of delegates.

    Shares are compared since another torch may give a model other operators.
    """
    before = share(old) or 0.0
    after = share(new) or 0.0
    if before != after:
        # some of the operators that are left to the host in one of the rows only
        moved = sorted(_left(new) ^ _left(old))[:3]
        yield _Difference(
            "delegated",
            WORSE if after < before else BETTER,
            f"{old['delegated']} of {old['operators']}",
            f"{new['delegated']} of {new['operators']}",
            ", ".join(moved),
        )
    if old["delegates"] != new["delegates"]:
        way = WORSE if new["delegates"] > old["delegates"] else BETTER
        if before != after:
            way = OTHER
        yield _Difference(
            "delegates", way, str(old["delegates"]), str(new["delegates"])
        )


def _left(row: Row) -> set[str]:
    """Return the operators that are left to the host, with reasons."""
    return {f"{cause['operator']} ({cause['reason'][:80]})" for cause in row["causes"]}


def _size(old: Row, new: Row) -> Iterator[_Difference]:
    """Compare the sizes of the files; without files, of the delegates' blobs."""
    if (file_bytes(old) is None) != (file_bytes(new) is None):
        return
    yield from _single_figure(
        "size",
        file_bytes(old) or old["bytes"],
        file_bytes(new) or new["bytes"],
        share=_SIZE,
        least=1024,
        shown=lambda size: f"{size:,} bytes",
    )


def _latency(old: Row, new: Row, noise: float) -> Iterator[_Difference]:
    """Compare latencies, unless times of the two runs overlap.

    If eager PyTorch, called alternately, became slower by a factor, so did the machine:
    a latency changed only if it did so with and without this factor. Runs with few
    calls are not compared.
    """
    before = milliseconds(old, "latency")
    after = milliseconds(new, "latency")
    if before is None or after is None or _is_busy(old) or _is_busy(new):
        return
    old_calls = old["measured"]["latency"]["seconds"]
    new_calls = new["measured"]["latency"]["seconds"]
    if min(len(old_calls), len(new_calls)) < _CALLS:
        return
    overlap = min(new_calls) <= max(old_calls) and max(new_calls) >= min(old_calls)
    if overlap:
        return

    factor = after / before if before else 1.0
    drift = 1.0
    reason = ""
    eager_before = milliseconds(old, "eager")
    eager_after = milliseconds(new, "eager")
    if eager_before and eager_after:
        drift = eager_after / eager_before
        reason = f"eager {eager_before:.3g} -> {eager_after:.3g} ms"

    if min(factor, factor / drift) > 1 + noise:
        way = WORSE
    elif min(1 / factor, drift / factor) > 1 + noise:
        way = BETTER
    else:
        return
    yield _Difference("latency", way, f"{before:.3g} ms", f"{after:.3g} ms", reason)


_CALLS = 3
"""Calls that both runs need for their latencies to be compared."""


def _is_busy(row: Row) -> bool:
    """Return whether the machine was so busy that all calls of a run may be slow by
    chance.

    At twelve processes a processor, five calls of one cell took 15 ms in one run and 73
    ms in another. Compilers with several threads stay below this limit.
    """
    load: float | None = row["measured"]["load"]
    return load is not None and load > _BUSY


_BUSY = 4.0


def _lowering(row: Row) -> float | None:
    """Return the seconds of CPU that lowering took."""
    found: float | None = row["measured"]["cpu"].get("lower")
    return found


def _single_figure(
    kind: str,
    old: Any,
    new: Any,
    *,
    share: float,
    least: float,
    shown: Callable[[Any], str],
) -> Iterator[_Difference]:
    """Compare a figure that was measured once; smaller is better.

    It changed if the difference is above ``least``, and above a ``share`` of the
    smaller figure.
    """
    if old is None or new is None:
        return
    if abs(new - old) > max(least, share * min(old, new)):
        way = WORSE if new > old else BETTER
        yield _Difference(kind, way, shown(old), shown(new))


def _machine(row: Row) -> Any:
    """Return the properties that times depend on, without the machine's name."""
    machine = row["measured"]["machine"] or {}
    return machine.get("cpu"), machine.get("cpus"), row["settings"]["threads"]


KINDS = (
    "missing",
    "failed",
    "agreement",
    "delegated",
    "error",
    "delegates",
    "size",
    "latency",
    "lowering",
    "memory",
    "new",
)
"""All kinds of changes, the most important first."""
GATES = KINDS[:-1]
"""The kinds that ``--gate`` accepts: a new cell is never worse."""


def gate(found: Sequence[Change], kinds: Sequence[str]) -> list[Change]:
    """Return the changes for the worse of these kinds."""
    return [change for change in found if change.way == WORSE and change.kind in kinds]


def other_machines(before: Sequence[Row], after: Sequence[Row]) -> int:
    """Return the number of cells with times from different machines, which are not
    compared.
    """
    old = {key_of(row): row for row in before}
    return sum(
        _machine(row) != _machine(old[key_of(row)])
        for row in after
        if key_of(row) in old
    )


def busy(before: Sequence[Row], after: Sequence[Row]) -> int:
    """Count the cells on a busy machine; their latencies are not compared."""
    old = {key_of(row): row for row in before}
    return sum(
        _is_busy(row) or _is_busy(old[key_of(row)])
        for row in after
        if key_of(row) in old
    )


def overall(before: Sequence[Row], after: Sequence[Row]) -> str:
    """Describe the median change of all latencies; "" if there are few.

    It shows a small change of all cells, which is noise in each of them.
    """
    old = {key_of(row): milliseconds(row, "latency") for row in before}
    pairs = [(old.get(key_of(row)), milliseconds(row, "latency")) for row in after]
    factors = [now / was for was, now in pairs if was and now]
    if len(factors) < _FEW:
        return ""
    return (
        f"latency of {len(factors)} cells: {statistics.median(factors) - 1:+.1%} in the"
        " median"
    )


_FEW = 5
"""With fewer cells, the median change is noise, too."""


def junit(rows: Sequence[Row], found: Sequence[Change], kinds: Sequence[str]) -> bytes:
    """Return a test suite for each model; a cell's test fails if its gates became
    worse.
    """
    failing: dict[tuple[str, str, str], list[str]] = {}
    for change in gate(found, kinds):
        key = change.model, change.target, change.quantize
        failing.setdefault(key, []).append(str(change))
    return _cells_as_junit(
        rows, {key: "\n".join(texts) for key, texts in failing.items()}
    )


def junit_of_rows(rows: Sequence[Row]) -> bytes:
    """Return a test suite for each model of one run: failed cells are failed tests."""
    return _cells_as_junit(
        rows, {key_of(row): why(row) for row in rows if row["error"] is not None}
    )


def _cells_as_junit(
    rows: Sequence[Row], failing: Mapping[tuple[str, str, str], str]
) -> bytes:
    seconds = {key_of(row): row["measured"]["total_seconds"] or 0.0 for row in rows}
    keys = dict.fromkeys([*seconds, *failing])
    cases = [
        Case(key[0], ", ".join(key[1:]), seconds.get(key, 0.0), failing.get(key))
        for key in keys
    ]
    return junit_xml("delegraph matrix", cases)


def to_json(change: Change) -> dict[str, Any]:
    return asdict(change)
