"""What became of each MODEL of ``delegraph lower``: as JSON, as text, as a line of a file of rows."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..command.outcome import Outcome, as_json, defect, describe_error
from ..errors import DelegraphError, InputError, WriteError
from ..io.atomic_write import write_whole
from ..io.escape import table

if TYPE_CHECKING:
    from ..host.verify import Verification
    from ..report.model import Report


@dataclass
class Attempt:
    """One MODEL: how far it came, what there is of it, the error that ended it. ``gates``: name -> error or None."""

    model: str
    report: Report | None = None
    verifications: dict[str, Verification] = field(default_factory=dict)
    written: dict[str, Any] | None = None
    reports: list[str] = field(default_factory=list)
    gates: dict[str, DelegraphError | None] = field(default_factory=dict)
    error: DelegraphError | None = None
    seconds: float = 0.0
    verbose: bool = False

    @property
    def output(self) -> Path | None:
        """Where the program was saved."""
        return None if self.written is None else Path(self.written["path"])

    def content(self) -> dict[str, Any]:
        """The fields of ``delegraph.lower/1``, and of ``delegraph.error/1`` where a report exists."""
        report = None if self.report is None else self.report.to_json()
        gates = {name: error is None for name, error in self.gates.items()}
        verification = None
        if self.verifications:
            from ..report.formats import verification_content

            verification = verification_content(self.verifications)
        written = {"output": self.written, "reports": self.reports}
        return {"report": report, "verification": verification, "gates": gates, **written}

    def row(self) -> dict[str, Any]:
        """The same as one object of several."""
        failed = None if self.error is None else describe_error(self.error)
        return {"model": self.model, "error": failed, **self.content(), "seconds": round(self.seconds, 3)}

    def text(self) -> str:
        """What is printed of a MODEL that is alone: what a report as text has, and what was written."""
        from ..report.formats import TextReport

        lines = [] if self.report is None else [TextReport.render(self).rstrip()]
        lines += [f"wrote {self.written['path']} ({self.written['bytes']} bytes)"] if self.written else []
        lines += [f"wrote {', '.join(self.reports)}"] if len(self.reports) > 1 else []
        return "\n".join(lines)


@contextlib.contextmanager
def attempt(made: Attempt) -> Iterator[None]:
    """What is raised inside ends the work on this MODEL, and is its error."""
    start = time.perf_counter()
    try:
        yield
    except DelegraphError as e:
        made.error = e
    except (Exception, SystemExit) as e:  # a defect; the next MODEL may be fine
        made.error = defect(e)
        made.error.__cause__ = e
    made.seconds = time.perf_counter() - start


def several(listed: Sequence[Mapping[str, Any]]) -> Outcome:
    """A table with a row for each MODEL; 1 if one of them failed."""
    head = ["MODEL", "DELEGATED", "DELEGATES", "BYTES", "ERROR OF VALUES", "SECONDS", ""]
    failed = sum(row["error"] is not None for row in listed)
    content = {"models": listed, "failed": failed}
    return Outcome("delegraph.lower-many/1", content, table([head, *map(_cells, listed)]), int(failed > 0))


def _cells(row: Mapping[str, Any]) -> list[str]:
    report, error = row["report"], row["error"]
    shown = ["-", "-", "-"]
    if report is not None:
        done, sizes = report["delegated_operators"], [d["bytes"] for d in report["delegates"]]
        shown = [f"{done} of {done + report['host_operators']}", str(len(sizes)), str(sum(sizes))]
    why = "" if error is None else f"{error['code']}: {error['message'].splitlines()[0]}"
    return [row["model"], *shown, _worst(row["verification"]), f"{row['seconds']:.1f}", why]


def _worst(figures: Mapping[str, Any] | None) -> str:
    """The largest error of all methods, of which each has its figures if there are several."""
    if not figures:
        return "-"
    methods = [figures] if "outputs" in figures else list(figures.values())
    errors = [method["relative_error"] for method in methods]
    return "infinite" if None in errors else f"{max(errors):.2g}"


_ROW = '{"schema": "delegraph.lower-row/1"'


def kept_rows(path: Path, settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Model -> its row from an earlier call with the same settings. Raises InputError for another file.

    A last line that is not whole, since the process was ended while it wrote, is taken out of the file.
    """
    if not path.exists():
        return {}
    rows: dict[str, dict[str, Any]] = {}
    wanted = json.loads(json.dumps(settings, default=str))
    try:
        *lines, torn = path.read_text(encoding="utf-8").split("\n")
        if torn[: len(_ROW)] != _ROW[: len(torn)]:
            raise ValueError("its last line does not end")
        for row in map(json.loads, lines):
            if row["settings"] == wanted.get(row["model"]):
                rows[row["model"]] = row
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as e:
        raise InputError("input-invalid", f"{path} is no file of rows that --rows wrote: {e}") from e
    if torn:
        write_whole(path, "".join(f"{line}\n" for line in lines).encode())
    return rows


def keep_row(path: Path, row: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Add a line, at once: if the next MODEL ends the process, this one is not lost."""
    content = json.loads(as_json(Outcome("delegraph.lower-row/1", {**row, "settings": settings}, "")))
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(content) + "\n")
    except OSError as e:
        raise WriteError("write-failed", f"cannot add to {path}: {e.strerror or e}") from e
