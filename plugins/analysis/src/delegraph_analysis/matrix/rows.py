"""Rows: one JSON object for each cell, in the form that docs/schema.json has as
``matrix-row``.

All that differs between two runs of the same cell, such as times, is under
``measured``.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import Any

from .cells import Cell
from .store import SCHEMA, Row

_UNKNOWN: Mapping[str, Any] = {
    "quantizer": None,
    "operators": None,
    "delegated": None,
    "delegates": None,
    "bytes": None,
    "causes": [],
    "given_back": [],
    "methods": {},
    "files": [],
    "gates": {},
    "not_run": None,
    "error": None,
    "stage": None,
}
"""The fields that only doing a cell can tell, before it was done."""
_FROM_OUTSIDE = ("SIGKILL", "SIGTERM")
"""Signals by which others end a process, such as a system without memory; one of these
is worth another attempt.
"""
_LINES = 8


def row_of(cell: Cell, outcome: Mapping[str, Any], attempts: int) -> Row:
    """Return the row of a cell.

    ``outcome`` is the result of ``execute.run``, ``attempts`` the number of tries.
    """
    job = cell.job()
    answer = outcome.get("answer") or {}
    found = {**_UNKNOWN, **answer.get("found", {})}
    measured = found.pop("measured", {})
    if not answer:
        found |= {"error": _ended(outcome, cell), "stage": outcome.get("stage")}
    if found["error"] is not None:
        measured["printed"] = _last_lines(outcome.get("printed", ""))
    stages = answer.get("found", {}).get("measured", {})
    measured |= {
        "total_seconds": outcome.get("seconds"),
        "cpu_seconds": outcome.get("cpu_seconds"),
        "peak_bytes": outcome.get("peak_bytes"),
        "seconds": stages.get("seconds", {}),
        "cpu": stages.get("cpu", {}),
        "attempts": attempts,
        "machine": outcome.get("machine"),
        "load": outcome.get("load"),
        "ended": outcome.get("ended"),
    }
    return {
        "schema": SCHEMA,
        "cell": job["cell"],
        "name": job["name"],
        "model": job["model"],
        "target": job["target"],
        "backends": job["backends"],
        "options": job["options"],
        "quantize": job["quantize"],
        **found,
        "settings": job["settings"],
        "versions": job["versions"],
        "measured": measured,
    }


def _last_lines(printed: str) -> list[str]:
    """Return the last lines, or those around the first line of faulthandler.

    After that line, faulthandler prints the innermost call first.
    """
    lines = [line[:300] for line in printed.splitlines()]
    for k, line in enumerate(lines):
        if line.startswith("Fatal Python error"):
            return lines[max(0, k - 2) : k + _LINES - 2]
    return lines[-_LINES:]


def is_worth_another(outcome: Mapping[str, Any]) -> bool:
    """Return whether a cell was lost or killed from outside before its answer."""
    if outcome.get("answer"):
        return False
    if "lost" in outcome:
        return True
    return not outcome["stopped"] and _signal(outcome["exit"]) in _FROM_OUTSIDE


def _signal(code: int) -> str:
    """Return the name of the signal of an exit code; "" for other codes."""
    try:
        return signal.Signals(-code).name if code < 0 else ""
    except ValueError:
        return f"signal {-code}"


def _ended(outcome: Mapping[str, Any], cell: Cell) -> dict[str, Any]:
    """Return the error of a cell without an answer."""
    if "lost" in outcome:
        return _error("matrix/lost", f"the cell was lost: {outcome['lost']}", None)
    if outcome["stopped"]:
        limit = f"{cell.settings.time_limit:g} s"
        return _error(
            "matrix/time-limit",
            f"its process was stopped after {limit}",
            "allow more with --time-limit",
        )
    code = outcome["exit"]
    if code >= 0:
        most = cell.settings.memory_limit
        hint = (
            None
            if most is None
            else f"its limit of {most:g} MB may be too small: see --memory-limit"
        )
        return _error(
            "matrix/process-ended", f"its process ended with exit code {code}", hint
        )
    name = _signal(code)
    hint = (
        "the system may have had no memory left; --memory-limit lets allocations fail"
        " before"
    )
    return _error(
        "matrix/process-ended",
        f"its process was killed by {name}",
        hint if name == "SIGKILL" else None,
    )


def _error(code: str, message: str, hint: str | None) -> dict[str, Any]:
    return {
        "code": code,
        "message": message,
        "source": None,
        "hint": hint,
        "raised_by": None,
    }


def counts_for(row: Mapping[str, Any], cell: Cell) -> bool:
    """Whether a row with the identity of the cell is its row: one that failed is so
    under the same limits only.
    """
    limits = cell.limits()
    return (
        row["error"] is None
        or {name: row["settings"].get(name) for name in limits} == limits
    )


def key_of(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """As ``Cell.key``."""
    return row["name"], row["target"], row["quantize"]


def latest(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of rows with one name, such as those of two versions of a backend, the one that
    was measured last.
    """
    found: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["measured"].get("ended") or ""):
        found[key_of(row)] = row
    order = {key: place for place, key in enumerate(dict.fromkeys(map(key_of, rows)))}
    return sorted(found.values(), key=lambda row: order[key_of(row)])


def agrees(row: Mapping[str, Any]) -> bool | None:
    """Whether all methods agree with eager; None if nothing was compared."""
    return (
        all(figures["agrees"] for figures in row["methods"].values())
        if row["methods"]
        else None
    )


def has_only_non_finite(row: Mapping[str, Any]) -> bool:
    """Whether some output of eager has no finite element, so that no number of it was
    compared.
    """
    return any(figures.get("only_non_finite") for figures in row["methods"].values())


def worst_error(row: Mapping[str, Any]) -> float | None:
    """The largest error of all methods, relative to the largest value of eager; None if
    it is not known or infinite.
    """
    errors = [figures["relative_error"] for figures in row["methods"].values()]
    return None if not errors or None in errors else max(errors)


def share(row: Mapping[str, Any]) -> float | None:
    """The delegated share of the operators."""
    return (
        None
        if row["operators"] is None
        else row["delegated"] / row["operators"]
        if row["operators"]
        else 1.0
    )


def status(row: Mapping[str, Any]) -> str:
    """In one or two words: ``failed``, ``differs`` from eager, ``not run`` here, or
    ``ok``.
    """
    if row["error"] is not None:
        return "failed"
    if agrees(row) is False:
        return "differs"
    return "not run" if row["not_run"] is not None else "ok"
