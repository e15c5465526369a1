"""The outside judges of what we write (tosa-tools): the reference model, the strict
validator of tosa-opt, flatc.

``run`` needs a child process, since the reference model aborts on bad input. Gdb is
kept off its path, because it asks gdb for a backtrace on every refusal.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

_RUN = """
import pickle, sys, tosa_reference_model as model
file, level = sys.argv[1:]
jobs = pickle.loads(open(file, "rb").read())
results = [model.run(tosa, inputs, tosa_level=level) for tosa, inputs in jobs]
open(file, "wb").write(pickle.dumps([(outputs, status.name) for outputs, status in results]))
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


def run_reference_model(
    tosa: bytes,
    inputs: Sequence[np.ndarray] = (),
    level: str = "EIGHTK",
    timeout: float = 300,
) -> list[np.ndarray]:
    """What the reference model computes. Refused unless it says TOSA_VALID."""
    return run_reference_model_on_all([(tosa, inputs)], level, timeout)[0]


def run_reference_model_on_all(
    jobs: Sequence[tuple[bytes, Sequence[np.ndarray]]],
    level: str = "EIGHTK",
    timeout: float = 300,
) -> list[list[np.ndarray]]:
    """``run`` for many files and their inputs in one child process. Refused unless all
    of them are TOSA_VALID.
    """
    tools()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "jobs")
        file.write_bytes(
            pickle.dumps(
                [(tosa, [np.asarray(x) for x in inputs]) for tosa, inputs in jobs]
            )
        )
        done = _call([sys.executable, "-c", _RUN, file, level], timeout=timeout)
        if done.returncode:
            raise Refused(
                f"reference model, exit {done.returncode}:"
                f" {done.stdout[-500:]}{done.stderr[-1500:]}"
            )
        results = pickle.loads(file.read_bytes())
    refused = {
        number: status
        for number, (_, status) in enumerate(results)
        if status != "TOSA_VALID"
    }
    if refused:
        raise Refused(
            f"reference model: {refused}: {done.stdout[-500:]}{done.stderr[-1500:]}"
        )
    return [outputs for outputs, _ in results]


def with_resolved_shapes(tosa: bytes, shapes: Mapping[str, Sequence[int]]) -> bytes:
    """The file for inputs of these shapes, as the official tool infers all others: the
    reference model wants them.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "file.tosa").write_bytes(tosa)
        (place / "desc.json").write_text(
            json.dumps({"tosa_file": "file.tosa", "shapes": shapes})
        )
        done = _call([tools() / "infer_shapes", "desc.json"], cwd=place)
        found = place / "resolved_file.tosa"
        if done.returncode or not found.exists():
            raise Refused(
                f"infer_shapes, exit {done.returncode}:"
                f" {done.stdout[-500:]}{done.stderr[-1500:]}"
            )
        return found.read_bytes()


_RUN_EACH = """
import os, pickle, sys, tosa_reference_model as model
file, level = sys.argv[1:]
def run(tosa, inputs):
    try:
        outputs, status = model.run(tosa, inputs, tosa_level=level)
        return outputs if status.name == "TOSA_VALID" else status.name
    except Exception as problem:
        return repr(problem)
def begin(jobs):  # some refusals end the process: the rest is for another one
    read, write = os.pipe()
    child = os.fork()
    if not child:
        with os.fdopen(write, "wb") as pipe:
            for job in jobs:
                pickle.dump(run(*job), pipe)
                pipe.flush()
        os._exit(0)
    os.close(write)
    done = []
    with os.fdopen(read, "rb") as pipe:
        for _ in jobs:
            try:
                done.append(pickle.load(pipe))
            except EOFError:
                break
    status = os.waitpid(child, 0)[1]
    return done + [f"ended with status {status}"] * (len(done) < len(jobs))
jobs, results = pickle.loads(open(file, "rb").read()), []
while len(results) < len(jobs):
    results += begin(jobs[len(results):])
open(file, "wb").write(pickle.dumps(results))
"""


def run_or_refusal_of_each(
    jobs: Sequence[tuple[bytes, Sequence[np.ndarray]]],
    level: str = "EIGHTK",
    timeout: float = 300,
) -> list[list[np.ndarray] | str]:
    """Outputs of each file, or the reference model's words of refusal; many in one
    child process.
    """
    tools()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "jobs")
        file.write_bytes(
            pickle.dumps(
                [(tosa, [np.asarray(x) for x in inputs]) for tosa, inputs in jobs]
            )
        )
        done = _call([sys.executable, "-c", _RUN_EACH, file, level], timeout=timeout)
        if done.returncode:
            raise Refused(
                f"reference model, exit {done.returncode}:"
                f" {done.stdout[-500:]}{done.stderr[-1500:]}"
            )
        return pickle.loads(file.read_bytes())


class Precise(NamedTuple):
    """What the reference model computes in fp64, and again from the operands'
    magnitudes: the verifier's bounds.
    """

    outputs: list[np.ndarray]
    bounds: list[np.ndarray]


def run_precisely(tosa: bytes, inputs: Sequence[tuple[np.ndarray, str]]) -> Precise:
    """The results of a file in fp64; each input is the bytes of an array with the type
    that the model knows it by.

    Only the program has this mode. It calls BF16 ``<V2`` and FP8E4M3 ``<V1``.
    """
    tools()
    from tosa.TosaGraph import TosaGraph

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "m.tosa").write_bytes(tosa)
        block = TosaGraph.GetRootAs(tosa).Regions(0).Blocks(0)
        ifm = [f"{i}.npy" for i in range(block.InputsLength())]
        ofm = [f"out{i}.npy" for i in range(block.OutputsLength())]
        for name, (array, type) in zip(ifm, inputs, strict=True):
            _save(place / name, array, type)
        description = {
            **{
                "tosa_file": "m.tosa",
                "ifm_file": ifm,
                "ofm_file": ofm,
                "expected_return_code": 0,
            },
            "ifm_name": [block.Inputs(i).decode() for i in range(len(ifm))],
            "ofm_name": [block.Outputs(i).decode() for i in range(len(ofm))],
            "test_requirements": {"bounds_file_required": True},
        }
        (place / "desc.json").write_text(json.dumps(description))
        options = [
            "--test_desc",
            place / "desc.json",
            "--operator_fbs",
            tools() / "tosa.fbs",
            "-p",
            "1",
        ]
        done = _call([tools() / "tosa_reference_model", *options])
        if done.returncode:
            raise Refused(
                f"reference model, exit {done.returncode}:"
                f" {done.stdout[-500:]}{done.stderr[-1500:]}"
            )
        return Precise(
            *(
                [np.load(place / f"{kind}{name}") for name in ofm]
                for kind in ("", "bounds_")
            )
        )


def _save(file: Path, array: np.ndarray, type: str) -> None:
    """A .npy of a type that numpy may not have."""
    with file.open("wb") as written:
        header = {"descr": type, "fortran_order": False, "shape": array.shape}
        np.lib.format.write_array_header_1_0(written, header)
        written.write(array.tobytes())


def check_strictly(
    tosa: bytes,
    profiles: str = "pro_fp",
    extensions: str = "",
    level: str = "8k",
    version: str = "1.0",
) -> str:
    """The MLIR of a file that tosa-opt's strict validator accepts for a version (1.0,
    1.1.draft); else Refused.

    ``profiles`` and ``extensions`` are comma-separated (``pro_fp,pro_int``, ``int16``).
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "m.tosa")
        file.write_bytes(tosa)
        target = (
            f"specification_version={version} level={level} profiles={profiles}"
            f" extensions={extensions}"
        )
        passes = (
            f"builtin.module(tosa-deserialize{{tosa-flatbuffer-filename={file}}},tosa-attach-target{{{target}}},"
            "tosa-validate{strict-op-spec-alignment})"
        )
        command = [
            tools() / "tosa-opt",
            f"--pass-pipeline={passes}",
            "--mlir-elide-elementsattrs-if-larger=8",
            "-",
        ]
        done = _call(command, input="module {}")
        if done.returncode:
            raise Refused(f"tosa-opt, exit {done.returncode}: {done.stderr[-1500:]}")
        return done.stdout


def check_strictly_for_spec(tosa: bytes, spec: Any) -> str:
    """``check_strictly`` for the profiles and extensions of a ``TosaSpec``."""
    profiles = ",".join(sorted(f"pro_{p.lower()}" for p in spec.profiles))
    extensions = ",".join(sorted(e.replace("-", "_") for e in spec.extensions))
    version = "1.0" if spec.version == (1, 0) else "1.1.draft"
    return check_strictly(tosa, profiles, extensions, spec.level.lower(), version)


def dump_by_flatc(tosa: bytes, schema: Path | None = None) -> dict[str, Any]:
    """The file as flatc prints it, by the official schema or another one; flatc
    verifies it before.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "m.tosa").write_bytes(tosa)
        command = [
            tools() / "flatc",
            "--json",
            "--raw-binary",
            "--strict-json",
            "-o",
            folder,
            schema or tools() / "tosa.fbs",
            "--",
        ]
        done = _call([*command, Path(folder, "m.tosa")])
        if done.returncode:
            raise Refused(f"flatc, exit {done.returncode}: {done.stdout}{done.stderr}")
        text = Path(folder, "m.json").read_text()
        return json.loads(re.sub(r":\s*(-?inf|nan)\b", r': "\1"', text))


def assemble_by_flatc(dumped: dict[str, Any], schema: Path | None = None) -> bytes:
    """The file of a (changed) ``dump``, as flatc writes it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "m.json").write_text(json.dumps(dumped))
        done = _call(
            [
                tools() / "flatc",
                "-b",
                "-o",
                folder,
                schema or tools() / "tosa.fbs",
                Path(folder, "m.json"),
            ]
        )
        if done.returncode:
            raise Refused(f"flatc, exit {done.returncode}: {done.stdout}{done.stderr}")
        return next(Path(folder).glob("m.[!j]*")).read_bytes()


def _call(
    command: Sequence[object], **options: Any
) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(p for p in os.get_exec_path() if not Path(p, "gdb").exists())
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}
    timeout = options.pop("timeout", 120)
    return subprocess.run(
        [str(c) for c in command],
        capture_output=True,
        text=True,
        env=environment,
        timeout=timeout,
        **options,
    )
