"""What a run of the checks has found so far, line by line in a file, so that one that was stopped can go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Any

from delegraph.errors import UsageError

from .check_result import CheckResult, Status
from .trial import Fault, Kind, Outcome

KIND = "delegraph check, journal 1"
"""The first line says it. It is for the same version of the kit, and no form that others read."""


class Journal:
    """Results of checks, and outcomes of the programs that are tried in other processes.

    ``of`` says which run it is: backend, versions and whatever else results depend on. Raises UsageError for a file of
    another run, or of another kind. A last line that was cut off, as the run was stopped, is left out.
    """

    def __init__(self, path: Path, of: Mapping[str, Any]) -> None:
        self._path, self._lock = path, Lock()
        self.results: dict[str, CheckResult] = {}
        self._outcomes: dict[tuple[str, int], list[list[Outcome]]] = {}
        wanted = json.loads(json.dumps({"kind": KIND, "run": dict(of)}, default=str))
        kept = (
            [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
            if path.exists()
            else []
        )
        try:
            first, *entries = map(json.loads, kept) if kept else [wanted]
            if first != wanted:
                hint = "name a file that does not exist yet, or check what that one is of"
                raise UsageError("usage-invalid", f"{path} is of another run: {_difference(first, wanted)}", hint=hint)
            for entry in entries:
                self._take(entry)
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise UsageError("usage-invalid", f"{path} is no file of a run of checks: {e}") from e
        path.write_text("".join(kept) or f"{json.dumps(wanted)}\n")

    def outcomes(self, series: str, lane: int) -> list[list[Outcome]]:
        """Those of the first programs of a lane of a series."""
        return self._outcomes.get((series, lane), [])

    def add_outcomes(self, series: str, lane: int, found: list[list[Outcome]]) -> None:
        """Note those of the programs that follow."""
        self._outcomes.setdefault((series, lane), []).extend(found)
        self._write({"series": series, "lane": lane, "outcomes": [[_written(o) for o in one] for one in found]})

    def add_result(self, result: CheckResult) -> None:
        """Note how a check ended."""
        self.results[result.name] = result
        self._write({"check": result.to_json()})

    def _write(self, entry: Mapping[str, Any]) -> None:
        with self._lock, self._path.open("a") as file:
            file.write(f"{json.dumps(entry)}\n")

    def _take(self, entry: Mapping[str, Any]) -> None:
        if "check" in entry:
            told = dict(entry["check"])
            result = CheckResult(**{**told, "status": Status(told["status"]), "warnings": tuple(told["warnings"])})
            self.results[result.name] = result
        else:
            found = [[_read(o) for o in one] for one in entry["outcomes"]]
            self._outcomes.setdefault((entry["series"], entry["lane"]), []).extend(found)


def _written(outcome: Outcome) -> dict[str, Any]:
    return {**asdict(outcome), "faults": [(fault.kind.name, fault.text) for fault in outcome.faults]}


def _read(entry: Mapping[str, Any]) -> Outcome:
    faults = tuple(Fault(Kind[kind], text) for kind, text in entry["faults"])
    refused = tuple((operator, reason) for operator, reason in entry["refused"])
    return Outcome(**{**entry, "faults": faults, "refused": refused, "accepted": tuple(entry["accepted"])})


def _difference(first: Any, wanted: Any) -> str:
    """The first thing in which two runs differ."""
    was, now = first["run"], wanted["run"]
    changed = next((name for name in {**was, **now} if was.get(name) != now.get(name)), "kind")
    return f"{changed} was {was.get(changed)!r}, and is {now.get(changed)!r}"
