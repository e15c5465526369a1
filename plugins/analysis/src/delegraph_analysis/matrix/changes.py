"""Compare two runs of a matrix for ``delegraph matrix diff``, beyond noise."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from delegraph.io.escape import printable

from ..junit_xml import Case, junit_xml
from .rows import agrees, key_of, status, worst_error
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
"""The same for lowering time and memory, which are measured once."""
_SIZE = 0.01
"""The same for files."""
_ERROR = 3.0
"""The same for errors of values, which rounding changes."""


@dataclass(frozen=True)
class Change:
    """A change of one kind in one cell. ``way``: better, worse, or other if neither."""

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
    old, new = ({key_of(row): row for row in rows} for rows in (before, after))
    found = []
    for key in dict.fromkeys([*old, *new]):
        if key not in new:
            found.append(Change(*key, "missing", WORSE, status(old[key]), "no row"))
        elif key not in old:
            found.append(
                Change(*key, "new", OTHER, "no row", status(new[key]), why(new[key]))
            )
        else:
            found += [
                Change(*key, *told) for told in _of_cell(old[key], new[key], noise)
            ]
    order = (WORSE, BETTER, OTHER)
    return sorted(
        found, key=lambda change: (order.index(change.way), KINDS.index(change.kind))
    )


Told = tuple[str, str, str, str, str]
"""Kind, way, before, after, and reason."""


def _of_cell(old: Row, new: Row, noise: float) -> Iterator[Told]:
    """Yield the changes of one cell. If it failed before or now, only that is compared."""
    was = old["error"] is not None
    now = new["error"] is not None
    if was or now:
        if was != now:
            yield (
                "failed",
                WORSE if now else BETTER,
                status(old),
                status(new),
                why(new if now else old),
            )
        elif old["error"]["code"] != new["error"]["code"]:
            yield "failed", OTHER, old["error"]["code"], new["error"]["code"], why(new)
        return
    yield from _values(old, new)
    yield from _delegation(old, new)
    yield from _size(old, new)
    if _machine(old) == _machine(new):
        yield from _latency(old, new, noise)
        yield from _once(
            "lowering",
            _lowering(old),
            _lowering(new),
            _ONCE,
            0.5,
            lambda v: f"{v:.2f} s of CPU",
        )
        yield from _once(
            "memory",
            peak_bytes(old),
            peak_bytes(new),
            _ONCE,
            32e6,
            lambda v: f"{v / 1e6:.0f} MB",
        )


def _values(old: Row, new: Row) -> Iterator[Told]:
    agreed = agrees(old)
    agreeing = agrees(new)
    errors = worst_error(old), worst_error(new)
    shown = ["-" if e is None else f"{e:.1e}" for e in errors]
    if agreed != agreeing:
        words = {True: "agrees", False: "differs", None: "not compared"}
        way = (
            OTHER
            if agreed is None
            else BETTER
            if agreeing and agreed is False
            else WORSE
        )
        yield (
            "agreement",
            way,
            words[agreed],
            words[agreeing],
            new["not_run"] or f"error {shown[0]} -> {shown[1]}",
        )
    elif None not in errors and max(errors) > _ERROR * max(min(errors), 1e-6):  # type: ignore[type-var,operator]
        way = WORSE if errors[1] > errors[0] else BETTER  # type: ignore[operator]
        yield "error", way, *shown, ""  # type: ignore[misc]


def _delegation(old: Row, new: Row) -> Iterator[Told]:
    """Compare the share of delegated operators, then the number of delegates.

    Shares are compared since another torch may give a model other operators.
    """
    sides = [(row["delegated"], row["operators"]) for row in (old, new)]
    texts = [f"{done} of {count}" for done, count in sides]
    shares = [done / count if count else 1.0 for done, count in sides]
    if shares[0] != shares[1]:
        left, leaves = (_left(row) for row in (old, new))
        moved = ", ".join(sorted(set(leaves) ^ set(left))[:3])
        yield (
            "delegated",
            WORSE if shares[1] < shares[0] else BETTER,
            texts[0],
            texts[1],
            moved,
        )
    if old["delegates"] != new["delegates"]:
        way = WORSE if new["delegates"] > old["delegates"] else BETTER
        way = OTHER if shares[0] != shares[1] else way
        yield "delegates", way, str(old["delegates"]), str(new["delegates"]), ""


def _left(row: Row) -> set[str]:
    return {f"{cause['operator']} ({cause['reason'][:80]})" for cause in row["causes"]}


def _size(old: Row, new: Row) -> Iterator[Told]:
    sizes = file_bytes(old) or old["bytes"], file_bytes(new) or new["bytes"]
    if (file_bytes(old) is None) == (file_bytes(new) is None):
        yield from _once("size", *sizes, _SIZE, 1024, lambda v: f"{v:,} bytes")


def _latency(old: Row, new: Row, noise: float) -> Iterator[Told]:
    """Compare latencies, unless calls of the two runs overlap.

    The slowdown of eager PyTorch, called alternately, is subtracted, since it comes
    from the machine. Runs with few calls are not compared.
    """
    times = [milliseconds(row, "latency") for row in (old, new)]
    eager = [milliseconds(row, "eager") for row in (old, new)]
    if None in times:
        return
    calls = [row["measured"]["latency"]["seconds"] for row in (old, new)]
    if min(map(len, calls)) < _CALLS or _is_busy(old) or _is_busy(new):
        return
    factor = times[1] / times[0] if times[0] else 1.0  # type: ignore[operator]
    drift = eager[1] / eager[0] if all(eager) else 1.0  # type: ignore[operator]
    is_apart = min(calls[1]) > max(calls[0]) or max(calls[1]) < min(calls[0])
    for way, by in ((WORSE, 1.0), (BETTER, -1.0)):
        if is_apart and min(factor**by, (factor / drift) ** by) > 1 + noise:
            shown = [f"{time:.3g} ms" for time in times]
            yield (
                "latency",
                way,
                shown[0],
                shown[1],
                f"eager {eager[0]:.3g} -> {eager[1]:.3g} ms" if all(eager) else "",
            )


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
    found: float | None = row["measured"]["cpu"].get("lower")
    return found


def _once(
    kind: str,
    old: Any,
    new: Any,
    factor: float,
    least: float,
    shown: Callable[[Any], str],
) -> Iterator[Told]:
    """Compare a figure without repetitions by a factor and a least difference."""
    if (
        old is not None
        and new is not None
        and abs(new - old) > max(least, factor * min(old, new))
    ):
        yield kind, WORSE if new > old else BETTER, shown(old), shown(new), ""


def _machine(row: Row) -> Any:
    """Return the properties that times depend on, without the machine's name."""
    machine = row["measured"]["machine"] or {}
    return [machine.get(name) for name in ("cpu", "cpus")] + [
        row["settings"]["threads"]
    ]


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
GATES = KINDS[:-1]


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
    """Describe the median change of all latencies, which single cells cannot show."""
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


def junit(rows: Sequence[Row], found: Sequence[Change], kinds: Sequence[str]) -> bytes:
    """Return a test suite for each model; a cell's test fails if its gates became
    worse.
    """
    failing: dict[tuple[str, str, str], list[str]] = {}
    for change in gate(found, kinds):
        failing.setdefault((change.model, change.target, change.quantize), []).append(
            str(change)
        )
    return _cells_as_junit(
        rows, {key: "\n".join(texts) for key, texts in failing.items()}
    )


def junit_of_rows(rows: Sequence[Row]) -> bytes:
    """Return the same for one run: failed cells are failed tests."""
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
