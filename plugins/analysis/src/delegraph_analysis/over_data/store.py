"""A file with the scores of samples, from which an interrupted run continues."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from delegraph import LoweredProgram
from delegraph.errors import InputError

from .samples import update_digest


class ScoreStore:
    """Scores by key, a line of JSON each. A half-written last line is ignored.

    Programs, metrics and samples determine the keys. So one file may hold scores of
    several models, and scores of a model that changed are not found.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._path = None if path is None else Path(path)
        self._found: dict[str, list[float]] = {}
        if self._path is not None and self._path.exists():
            self._found = _read(self._path)

    def find(self, key: str) -> list[float] | None:
        """Return the scores that were stored for ``key``; None if there are none."""
        return self._found.get(key)

    def add(self, key: str, scores: list[float]) -> None:
        """Append the scores of one sample to the file."""
        if self._path is None:
            return
        line = json.dumps({"key": key, "scores": scores})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"\n{line}")


def _read(path: Path) -> dict[str, list[float]]:
    found = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise InputError("input-invalid", f"cannot read {path}: {e}") from e
    for line in lines:
        try:
            row = json.loads(line)
            found[str(row["key"])] = [float(score) for score in row["scores"]]
        except (ValueError, TypeError, KeyError):
            continue
    return found


def identify(programs: Mapping[str, LoweredProgram], method: str, names: str) -> str:
    """Return a hash of lowered programs: graphs, weights and blobs.

    ``names``: a text that differs for other columns or another metric.
    """
    found = hashlib.sha256(names.encode())
    for name, lowered in programs.items():
        program = lowered.exported_program(method)
        found.update(f"{name}\n{program.graph}".encode())
        for tensors in (program.state_dict, program.constants):
            for key, tensor in tensors.items():
                found.update(str(key).encode())
                update_digest(found, tensor)
        for delegate in lowered.delegates:
            found.update(bytes(delegate.module.processed_bytes))
    return found.hexdigest()
