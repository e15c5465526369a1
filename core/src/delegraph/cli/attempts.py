"""What became of each MODEL of ``delegraph lower``: as JSON, as text, as a line of a file of rows, as JUnit XML."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..command.outcome import Outcome, as_json, defect, describe_error
from ..errors import DelegraphError, InputError, WriteError
from ..io.atomic_write import write_whole
from ..io.escape import printable, table

if TYPE_CHECKING:
    from ..host.verify import Verification
    from ..report.model import Report


@dataclass
class Attempt:
    """One MODEL: how far it came, what there is of it, the error that ended it. ``gates``: name -> error or None."""

    model: str
    report: Report | None = None
    verifications: dict[str, Verification] = field(default_factory=dict)
    output: dict[str, Any] | None = None
    node_data: list[str] = field(default_factory=list)
    gates: dict[str, DelegraphError | None] = field(default_factory=dict)
    error: DelegraphError | None = None
    seconds: float = 0.0

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Attempt:
        """What an earlier call wrote down, but for the report. A row has the words of one failed gate."""
        made = cls(row["model"], output=row["output"], node_data=row["node_data"], seconds=row["seconds"])
        if row["error"] is not None:
            made.error = DelegraphError(row["error"]["code"], row["error"]["message"], hint=row["error"]["hint"])
        failed = [name for name, held in row["gates"].items() if not held]
        made.gates = dict.fromkeys(row["gates"])
        made.gates |= {name: DelegraphError("gate-failed", f"{name} failed, as {failed[0]} did") for name in failed}
        made.gates |= {name: made.error for name in failed[:1]}
        return made

    def gate(self, name: str, check: Callable[[], None]) -> None:
        """Note whether ``check`` raises."""
        try:
            check()
            self.gates[name] = None
        except DelegraphError as e:
            self.gates[name] = e

    def raise_first(self) -> None:
        """Raise the error of the first gate that failed."""
        for error in filter(None, self.gates.values()):
            raise error

    def content(self) -> dict[str, Any]:
        """The fields of ``delegraph.lower/1``, and of ``delegraph.error/1`` where a report exists."""
        verification = None
        if self.verifications:
            first, *more = self.verifications.values()
            verification = first.to_json() if not more else {m: v.to_json() for m, v in self.verifications.items()}
        report = None if self.report is None else self.report.to_json()
        gates = {name: error is None for name, error in self.gates.items()}
        written = {"output": self.output, "node_data": self.node_data}
        return {"report": report, "verification": verification, "gates": gates, **written}

    def row(self) -> dict[str, Any]:
        """The same as one object of several."""
        failed = None if self.error is None else describe_error(self.error)
        return {"model": self.model, "error": failed, **self.content(), "seconds": round(self.seconds, 3)}

    def verification_lines(self) -> list[str]:
        """The figures against eager, of several methods each with its name."""
        several = len(self.verifications) > 1
        return [f"method {printable(m)}, {v}" if several else str(v) for m, v in self.verifications.items()]

    def text(self, verbose: bool) -> str:
        """What is printed of a MODEL that is alone."""
        lines = [] if self.report is None else [self.report.to_text(verbose)]
        lines += self.verification_lines()
        lines += [f"wrote {self.output['path']} ({self.output['bytes']} bytes)"] if self.output else []
        lines += [f"wrote {', '.join(self.node_data)}"] if self.node_data else []
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


def write_report(path: Path, made: Attempt, verbose: bool) -> None:
    """In the form that the suffix names; as text if it names none. All have the figures against eager too."""
    report = made.report
    assert report is not None
    if path.suffix == ".json":
        content = {**report.to_json(), "verification": made.content()["verification"]}
        text = as_json(Outcome(content["schema"], content, ""))
    elif path.suffix in (".html", ".htm"):
        text = report.to_html(made.verifications)
    else:
        text = "\n".join([report.to_text(verbose), *made.verification_lines()])
    write_whole(path, f"{text}\n".encode())


def write_node_data(path: Path, made: Attempt, output: Path | None) -> None:
    """A file for each column: ``FILE.delegate.json``; of several methods ``FILE.METHOD.delegate.json``."""
    from ..discovery.registry import default_registry
    from ..host.files import FileFormat
    from ..report.node_data import node_data

    report = made.report
    assert report is not None
    saved = None if output is None else FileFormat(output, default_registry())
    node_of = saved.node_of if saved is not None and saved.defines("node_of") else None
    for method in report.host:
        found = made.verifications.get(method)
        for column in node_data(report, method, found.operators if found is not None else None, node_of):
            parts = [path.name.removesuffix(".json"), *([method] if len(report.host) > 1 else []), column.name, "json"]
            place = path.with_name(".".join(parts))
            write_whole(place, f"{json.dumps(column.to_json(), indent=2)}\n".encode())
            made.node_data.append(str(place))


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


def keep_row(path: Path, made: Attempt, settings: Mapping[str, Any]) -> None:
    """Add a line, at once: if the next MODEL ends the process, this one is not lost."""
    row = json.loads(as_json(Outcome("delegraph.lower-row/1", {**made.row(), "settings": settings}, "")))
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    except OSError as e:
        raise WriteError("write-failed", f"cannot add to {path}: {e.strerror or e}") from e


def write_junit(path: Path, attempts: Sequence[Attempt]) -> None:
    """A test suite for each MODEL: whether it was lowered, and each gate."""
    from xml.etree import ElementTree as xml

    root = xml.Element("testsuites", name="delegraph lower")
    for made in attempts:
        ended = made.error if made.error is not None and made.error not in made.gates.values() else None
        cases = {"lower": ended, **made.gates}
        failed = sum(error is not None for error in cases.values())
        suite = xml.SubElement(
            root, "testsuite", name=printable(made.model), tests=str(len(cases)), failures=str(failed), errors="0",
            skipped="0", time=f"{made.seconds:.3f}",
        )  # fmt: skip
        for name, error in cases.items():
            case = xml.SubElement(suite, "testcase", classname=printable(made.model), name=name, time="0")
            if error is not None:
                text = printable(str(error), kept="\n")
                xml.SubElement(case, "failure", type=error.code, message=text.partition("\n")[0]).text = text
    xml.indent(root)
    write_whole(path, xml.tostring(root, encoding="utf-8", xml_declaration=True))
