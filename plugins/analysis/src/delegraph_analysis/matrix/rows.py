"""Make and read rows: a JSON object with the results of a cell.

docs/schema.json describes it as ``matrix-row``. Figures that differ between two runs of
the same cell, such as times, are in its field ``measured``.
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
"""The values of fields that a cell did not report, because it ended earlier."""
_FROM_OUTSIDE = ("SIGKILL", "SIGTERM")
"""Signals by which others end a process, such as a system without memory.

A cell that ended so is done again.
"""
_LINES = 8
"""Lines of a failed cell's output in its row."""


def row_of(cell: Cell, outcome: Mapping[str, Any], attempts: int) -> Row:
    """Return the row of a cell.

    ``outcome`` is the result of ``execute.run``, ``attempts`` the number of its runs.
    """
    job = cell.job()
    answer = outcome.get("answer") or {}
    found = {**_UNKNOWN, **answer.get("found", {})}
    measured = found.pop("measured", {})
    if not answer:
        error = _error_without_answer(outcome, cell)
        found |= {"error": error, "stage": outcome.get("stage")}
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
    """Return the last lines of the output.

    If faulthandler printed a stack, return its beginning, which has the innermost calls,
    and the two lines before it.
    """
    lines = [line[:300] for line in printed.splitlines()]
    for k, line in enumerate(lines):
        if line.startswith("Fatal Python error"):
            return lines[max(0, k - 2) : k + _LINES - 2]
    return lines[-_LINES:]


def needs_another_attempt(outcome: Mapping[str, Any]) -> bool:
    """Return whether a cell was lost or killed from outside before its answer."""
    if outcome.get("answer"):
        return False
    if "lost" in outcome:
        return True
    return not outcome["stopped"] and _signal(outcome["exit"]) in _FROM_OUTSIDE


def _signal(code: int) -> str:
    """Return the name of the signal that ended a process; "" if none did.

    ``code``: the exit code, which is negative for a signal.
    """
    try:
        return signal.Signals(-code).name if code < 0 else ""
    except ValueError:
        return f"signal {-code}"


def _error_without_answer(outcome: Mapping[str, Any], cell: Cell) -> dict[str, Any]:
    """Return the error of a cell that ended before its answer."""
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
        hint = None
        if most is not None:
            hint = f"its limit of {most:g} MB may be too small: see --memory-limit"
        return _error(
            "matrix/process-ended", f"its process ended with exit code {code}", hint
        )
    name = _signal(code)
    hint = None
    if name == "SIGKILL":
        hint = (
            "the system may have had no memory left; --memory-limit lets allocations"
            " fail before"
        )
    return _error("matrix/process-ended", f"its process was killed by {name}", hint)


def _error(code: str, message: str, hint: str | None) -> dict[str, Any]:
    return {
        "code": code,
        "message": message,
        "source": None,
        "hint": hint,
        "raised_by": None,
    }


def counts_for(row: Mapping[str, Any], cell: Cell) -> bool:
    """Return whether a row with the identity of a cell can replace doing the cell.

    The row of a failed cell can do so only if it has the same limits: with more time or
    memory, the cell may not fail.
    """
    if row["error"] is None:
        return True
    limits = cell.limits()
    return {name: row["settings"].get(name) for name in limits} == limits


def key_of(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the name of a row's cell: (model, target, quantization)."""
    return row["name"], row["target"], row["quantize"]


def latest(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the last measured row for each ``key_of``, in the order of ``rows``.

    A store has several rows of one name if, for example, a backend was updated.
    """
    found: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["measured"].get("ended") or ""):
        found[key_of(row)] = row
    return [found[key] for key in dict.fromkeys(map(key_of, rows))]


def agrees(row: Mapping[str, Any]) -> bool | None:
    """Return whether all methods agree with eager; None if nothing was compared."""
    if not row["methods"]:
        return None
    return all(figures["agrees"] for figures in row["methods"].values())


def has_only_non_finite(row: Mapping[str, Any]) -> bool:
    """Return whether some output of eager has no finite element.

    No number of such an output was compared.
    """
    return any(figures.get("only_non_finite") for figures in row["methods"].values())


def worst_error(row: Mapping[str, Any]) -> float | None:
    """Return the largest error of all methods, relative to the largest value of eager.

    Returns None if it is unknown or infinite.
    """
    errors = [figures["relative_error"] for figures in row["methods"].values()]
    return None if not errors or None in errors else max(errors)


def share(row: Mapping[str, Any]) -> float | None:
    """Return the share of the operators that are delegated; None if it is unknown."""
    if row["operators"] is None:
        return None
    return row["delegated"] / row["operators"] if row["operators"] else 1.0


def status(row: Mapping[str, Any]) -> str:
    """Return ``failed``, ``differs`` (from eager), ``not run`` (on this host) or ``ok``."""
    if row["error"] is not None:
        return "failed"
    if agrees(row) is False:
        return "differs"
    return "not run" if row["not_run"] is not None else "ok"
