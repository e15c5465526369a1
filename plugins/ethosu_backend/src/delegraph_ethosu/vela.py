"""Runs Vela in a process of its own; crashes and timeouts become refusals."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from delegraph.backend import Blob
from delegraph.errors import OptionError, Unsupported

_LONGEST = 400
"""The most characters of Vela's output in an error."""
_LARGEST = 2**31
"""The size limit in bytes of a TOSA file for Vela."""
_SETTINGS = re.compile(
    r"(CliOptionError|ConfigOptionError|InputFileError): ['\"]?(Error:"
    r" )?(?P<message>.*?)['\"]?$"
)
"""The last line that Vela prints for a wrong setting."""
Row = dict[str, str]


def vela_version() -> tuple[int, ...]:
    """Return the version of the installed Vela, such as (5, 2, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version("ethos-u-vela"))[:3])


def tosa_version() -> str:
    """Return the TOSA version that the installed Vela reads: 0.80 up to 4.2, then 1.0."""
    return "1.0" if vela_version() >= (4, 3) else "0.80"


@dataclass(frozen=True)
class Compiled:
    """Vela's results: arrays of its ``.npz`` file, tables, summary, output text."""

    arrays: dict[str, Any]
    tables: dict[str, list[Row]]
    summary: Row
    printed: str


def run_vela(file: Blob, flags: Sequence[str], seconds: int) -> Compiled:
    """Compile a TOSA file.

    Raises OptionError if Vela refuses the flags, Unsupported if it refuses the file.
    """
    if len(file) >= _LARGEST:
        raise Unsupported(
            "unsupported",
            f"Vela reads files below 2 GiB; the partition has {len(file)} bytes",
        )
    with tempfile.TemporaryDirectory(prefix="delegraph-ethosu-") as name:
        folder = Path(name)
        with (folder / "main.tosa").open("wb") as stream:
            file.write_to(stream)
        # The debug database has the estimates. It changes nothing in the command
        # stream.
        fixed = [
            "--output-format=raw",
            "--enable-debug-db",
            "--output-dir=out",
            "main.tosa",
        ]
        command = [sys.executable, "-m", "ethosu.vela", *flags, *fixed]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired as error:
            raise Unsupported(
                "unsupported",
                f"Vela took more than {seconds} seconds, the option seconds",
            ) from error
        _raise_if_refused(done)
        return _read_results(folder / "out", done.stdout)


def _raise_if_refused(done: subprocess.CompletedProcess[str]) -> None:
    """Raise an error for a failed run, or for operators that Vela left to the CPU."""
    output = done.stderr.strip() or done.stdout.strip() or "nothing"
    last = output.splitlines()[-1]
    setting = _SETTINGS.search(last)
    if done.returncode == 2 or setting:
        message = last.removeprefix("vela: error: ")
        if setting:
            message = setting["message"]
        raise OptionError(
            "option-invalid", f"Vela refuses its settings: {message[:_LONGEST]}"
        )
    if done.returncode < 0:
        raise Unsupported(
            "unsupported",
            f"Vela crashed with signal {-done.returncode}; its last line is:"
            f" {last[:_LONGEST]}",
        )
    if done.returncode:
        # "RuntimeError: Non-passthrough operation (Gather) could not run on NPU"
        # without the class of the exception
        message = re.sub(r"^[\w.]+(Error|Exception): ", "", last)
        raise Unsupported("unsupported", f"Vela: {message[:_LONGEST]}")
    left = re.search(r"^CPU operators = (\d+)", done.stdout, re.MULTILINE)
    if left and int(left[1]):
        raise Unsupported(
            "unsupported",
            f"Vela cannot put {left[1]} operators of the delegate on the NPU",
        )


def _read_results(folder: Path, printed: str) -> Compiled:
    """Read the files of a run."""
    files = sorted(folder.glob("main_vela*.npz"))
    if len(files) != 1:
        raise Unsupported(
            "unsupported",
            f"Vela wrote {len(files)} command streams; a delegate must have one",
        )
    fields = ("shape", "elem_size", "offset", "region")
    names = ["cmd_data", "weight_data", "scratch_shape"]
    names += [f"input_{field}" for field in fields]
    names += [f"output_{field}" for field in fields]
    with np.load(files[0], allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in names}
    summaries = [
        list(csv.DictReader(path.read_text().splitlines()))
        for path in folder.glob("main_summary*.csv")
    ]
    summary = summaries[0][0] if summaries else {}
    return Compiled(arrays, _tables(folder / "main_debug.xml"), summary, printed)


def _tables(path: Path) -> dict[str, list[Row]]:
    """Return the tables of Vela's debug database; {} if this version writes none."""
    if not path.exists():
        return {}
    tables: dict[str, list[Row]] = {}
    for table in ElementTree.parse(path).getroot().iter("table"):
        lines = (table.text or "").strip().splitlines()
        tables[table.get("name", "")] = list(csv.DictReader(lines))
    return tables
