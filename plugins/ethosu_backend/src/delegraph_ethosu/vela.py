"""Runs Vela, in a process of its own: if it crashes or hangs, that is a refusal, and
what it prints is its own.
"""

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
"""Characters of Vela's output that an error shows."""
_LARGEST = 2**31
"""Bytes of a TOSA file that Vela reads."""
_SETTINGS = re.compile(
    r"(CliOptionError|ConfigOptionError|InputFileError): ['\"]?(Error:"
    r" )?(?P<said>.*?)['\"]?$"
)
"""The last line that Vela prints for a setting that is wrong."""
Row = dict[str, str]


def vela_version() -> tuple[int, ...]:
    """The version of the Vela that is installed, (5, 2, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version("ethos-u-vela"))[:3])


def tosa_version() -> str:
    """The version of TOSA that the installed Vela reads: 0.80 up to 4.2, 1.0 after
    that.
    """
    return "1.0" if vela_version() >= (4, 3) else "0.80"


@dataclass(frozen=True)
class Compiled:
    """What Vela made: arrays of its ``.npz`` file, tables of operators by name, its
    summary, and what it printed.
    """

    arrays: dict[str, Any]
    tables: dict[str, list[Row]]
    summary: Row
    printed: str


def run_vela(file: Blob, flags: Sequence[str], seconds: int) -> Compiled:
    """Compile a TOSA file. OptionError if Vela does not take the flags, Unsupported if
    it does not take the file.
    """
    if len(file) >= _LARGEST:
        raise Unsupported(
            "unsupported",
            f"Vela reads files below 2 GiB; this one has {len(file)} bytes",
        )
    with tempfile.TemporaryDirectory(prefix="delegraph-ethosu-") as name:
        folder = Path(name)
        with (folder / "main.tosa").open("wb") as stream:
            file.write_to(stream)
        # The debug database, from which estimates come, changes nothing in the command
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
                "unsupported", f"Vela took more than {seconds} seconds"
            ) from error
        _check(done)
        return _read(folder / "out", done.stdout)


def _check(done: subprocess.CompletedProcess[str]) -> None:
    """Raise the error for a run that compiled nothing, or left something to a
    processor.
    """
    last = (
        done.stderr.strip().splitlines()
        or done.stdout.strip().splitlines()
        or ["nothing"]
    )[-1]
    setting = _SETTINGS.search(last)
    if done.returncode == 2 or setting:
        said = setting["said"] if setting else last.removeprefix("vela: error: ")
        raise OptionError(
            "option-invalid", f"Vela does not take its settings: {said[:_LONGEST]}"
        )
    if done.returncode < 0:
        raise Unsupported(
            "unsupported",
            f"Vela crashed: signal {-done.returncode}; it said last: {last[:_LONGEST]}",
        )
    if done.returncode:
        # "RuntimeError: Non-passthrough operation (Gather) could not run on NPU"
        # without the class of the exception
        said = re.sub(r"^[\w.]+(Error|Exception): ", "", last)
        raise Unsupported("unsupported", f"Vela: {said[:_LONGEST]}")
    left = re.search(r"^CPU operators = (\d+)", done.stdout, re.MULTILINE)
    if left and int(left[1]):
        raise Unsupported(
            "unsupported", f"Vela leaves {left[1]} of its operators to the processor"
        )


def _read(folder: Path, printed: str) -> Compiled:
    """What a run wrote."""
    files = sorted(folder.glob("main_vela*.npz"))
    if len(files) != 1:
        raise Unsupported(
            "unsupported", f"Vela wrote {len(files)} command streams; one is wanted"
        )
    wanted = ("shape", "elem_size", "offset", "region")
    names = [
        "cmd_data",
        "weight_data",
        "scratch_shape",
        *(f"{s}_{w}" for s in ("input", "output") for w in wanted),
    ]
    with np.load(files[0], allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in names}
    summaries = [
        list(csv.DictReader(path.read_text().splitlines()))
        for path in folder.glob("main_summary*.csv")
    ]
    return Compiled(
        arrays,
        _tables(folder / "main_debug.xml"),
        summaries[0][0] if summaries else {},
        printed,
    )


def _tables(path: Path) -> dict[str, list[Row]]:
    """The tables of Vela's debug database; {} if this version writes none."""
    if not path.exists():
        return {}
    tables = ElementTree.parse(path).getroot().iter("table")
    return {
        table.get("name", ""): list(
            csv.DictReader((table.text or "").strip().splitlines())
        )
        for table in tables
    }
