"""The outside judges of what we write (tosa-tools): the reference model, the strict validator of tosa-opt, flatc.

``run`` needs a child process, since the reference model aborts on bad input. Gdb is kept off its path, because it asks
gdb for a backtrace on every refusal.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

_RUN = """
import sys, numpy as np, tosa_reference_model as model
folder, level = sys.argv[1:]
inputs = [np.load(f"{folder}/in{i}.npy") for i in range(len(list(__import__("pathlib").Path(folder).glob("in*.npy"))))]
outputs, status = model.run(open(f"{folder}/m.tosa", "rb").read(), inputs, tosa_level=level)
for i, output in enumerate(outputs):
    np.save(f"{folder}/out{i}.npy", output)
print("status", status.name, len(outputs))
"""


class Refused(Exception):
    """A judge refuses a file; the text is the judge's."""


@lru_cache(maxsize=1)
def tools() -> Path:
    """The folder of the judges' programs; without it the test is skipped."""
    try:
        folder = Path(str(metadata.distribution("tosa-tools").locate_file("bin")))
    except metadata.PackageNotFoundError:
        pytest.skip("tosa-tools is not installed (extra `verify`)")
    for program in folder.iterdir():
        program.chmod(program.stat().st_mode | 0o111)
    return folder


def run(
    tosa: bytes, inputs: Sequence[np.ndarray] = (), level: str = "EIGHTK", timeout: float = 300
) -> list[np.ndarray]:
    """What the reference model computes. Refused unless it says TOSA_VALID."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "m.tosa").write_bytes(tosa)
        for i, array in enumerate(inputs):
            np.save(Path(folder, f"in{i}.npy"), array)
        tools()
        done = _call([sys.executable, "-c", _RUN, folder, level], timeout=timeout)
        match = re.search(r"^status TOSA_VALID (\d+)$", done.stdout, re.MULTILINE)
        if done.returncode or not match:
            raise Refused(f"reference model, exit {done.returncode}: {done.stdout[-500:]}{done.stderr[-1500:]}")
        return [np.load(Path(folder, f"out{i}.npy")) for i in range(int(match[1]))]


def check_strictly(tosa: bytes, profiles: str = "pro_fp", extensions: str = "", level: str = "8k") -> str:
    """The MLIR of a file that tosa-opt's strict validator accepts for TOSA 1.0; Refused with its words otherwise.

    ``profiles`` and ``extensions`` are comma-separated (``pro_fp,pro_int``, ``int16``).
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "m.tosa")
        file.write_bytes(tosa)
        target = f"specification_version=1.0 level={level} profiles={profiles} extensions={extensions}"
        passes = (
            f"builtin.module(tosa-deserialize{{tosa-flatbuffer-filename={file}}},tosa-attach-target{{{target}}},"
            "tosa-validate{strict-op-spec-alignment})"
        )
        command = [tools() / "tosa-opt", f"--pass-pipeline={passes}", "--mlir-elide-elementsattrs-if-larger=8", "-"]
        done = _call(command, input="module {}")
        if done.returncode:
            raise Refused(f"tosa-opt, exit {done.returncode}: {done.stderr[-1500:]}")
        return done.stdout


def judge(tosa: bytes, spec: Any) -> str:
    """``check_strictly`` for the profiles and extensions of a ``TosaSpec``."""
    profiles = ",".join(sorted(f"pro_{p.lower()}" for p in spec.profiles))
    return check_strictly(tosa, profiles, ",".join(sorted(spec.extensions)), spec.level.lower())


def dump(tosa: bytes) -> dict[str, Any]:
    """The file as flatc prints it; flatc verifies it before."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "m.tosa").write_bytes(tosa)
        command = [
            tools() / "flatc",
            "--json",
            "--raw-binary",
            "--strict-json",
            "-o",
            folder,
            tools() / "tosa.fbs",
            "--",
        ]
        done = _call([*command, Path(folder, "m.tosa")])
        if done.returncode:
            raise Refused(f"flatc, exit {done.returncode}: {done.stdout}{done.stderr}")
        text = Path(folder, "m.json").read_text()
        return json.loads(re.sub(r":\s*(-?inf|nan)\b", r': "\1"', text))


def assemble(dumped: dict[str, Any]) -> bytes:
    """The file of a (changed) ``dump``, as flatc writes it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "m.json").write_text(json.dumps(dumped))
        done = _call([tools() / "flatc", "-b", "-o", folder, tools() / "tosa.fbs", Path(folder, "m.json")])
        if done.returncode:
            raise Refused(f"flatc, exit {done.returncode}: {done.stdout}{done.stderr}")
        return next(Path(folder).glob("m.[!j]*")).read_bytes()


def _call(command: Sequence[object], **options: Any) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(p for p in os.get_exec_path() if not Path(p, "gdb").exists())
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}
    timeout = options.pop("timeout", 120)
    return subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, env=environment, timeout=timeout, **options
    )
