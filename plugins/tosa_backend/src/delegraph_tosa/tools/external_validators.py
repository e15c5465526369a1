"""Runs other installed tools on a file: tosa-tools (extra ``verify``)."""

from __future__ import annotations

import copy
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import numpy as np
from delegraph.formats import Verdict, write_whole

from ..evaluate.specialize import is_dynamic
from ..ir.graph import Array, Graph, Operator, Value
from ..ir.operators import CUSTOM
from ..ir.types import BLOCK_SCALED, DType
from ..serialize.elements import size_in_file
from ..serialize.writer import TosaFile
from ..spec import TosaSpec, required_target

SECONDS = 300
"""A tool that takes longer is ended."""
WHOLE_UP_TO = 1 << 30
"""Largest file that the tools get unchanged, in bytes.

The reference model takes four times as much memory, tosa-opt twice.
"""
LARGE = 1 << 16
"""Size in bytes of a constant that ``_legality_of_large`` makes an input."""
_MOST_ERRORS = 1 << 20
"""Bytes of a tool's errors that are read."""
_RUN = """
import sys, numpy, tosa_reference_model as model
file, arrays, level = sys.argv[1:]
held = numpy.load(arrays)
outputs, status = model.run(open(file, "rb").read(), [held[f"x{k}"] for k in range(len(held))], tosa_level=level)
sys.exit(0 if status == model.GraphStatus.TOSA_VALID else f"the reference model returned {status.name}")
"""


def verdicts(
    file: Path, graph: Graph, spec: TosaSpec, inputs: Sequence[Array]
) -> list[Verdict]:
    """Return the verdicts of tosa-opt and of the reference model.

    tosa-opt checks that ``file``, with this ``graph``, is legal for ``spec``. The model
    runs it on ``inputs``.
    """
    if spec.version < (1, 0):
        return _verdicts_on_1_0(graph, inputs)
    if file.stat().st_size <= WHOLE_UP_TO:
        return [legality(file, spec), _reference_model(file, graph, spec, inputs)]
    return [
        _legality_of_large(graph, spec),
        _reference_model(file, graph, spec, inputs),
    ]


def _verdicts_on_1_0(graph: Graph, inputs: Sequence[Array]) -> list[Verdict]:
    """Return the verdicts on a 0.80 file, converted to 1.0 for these tools."""
    version, needs = required_target(graph)
    spec = TosaSpec(version, *needs)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "m.tosa")
        write_whole(file, TosaFile(graph, spec))
        found = verdicts(file, graph, spec, inputs)
    suffix = "; of the same program as TOSA 1.0"
    return [verdict._replace(detail=verdict.detail + suffix) for verdict in found]


def legality(file: Path, spec: TosaSpec) -> Verdict:
    """Return the verdict of tosa-opt's strict validator on a file."""
    program = _program("tosa-opt")
    if program is None:
        return Verdict("tosa-opt", None, "not installed: pip install tosa-tools")
    # the pipeline's syntax has no quoting: the name must be plain
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder, "m.tosa")
        os.symlink(file.resolve(), plain)
        command = [str(program), f"--pass-pipeline={_pipeline(plain, spec)}", "-"]
        done = _call([*command, "--mlir-elide-elementsattrs-if-larger=8"], "module {}")
    if done.returncode == 0:
        return Verdict("tosa-opt", True, f"legal for {spec}")
    mark = "error: "
    lines = [line for line in done.stderr.splitlines() if mark in line]
    errors = [line.partition(mark)[2] for line in lines]
    return Verdict("tosa-opt", False, "; ".join(errors) or done.stderr[-300:])


def _legality_of_large(graph: Graph, spec: TosaSpec) -> Verdict:
    """Return the verdict on a copy with large constants as inputs.

    No rule depends on that many elements.
    """
    inputs: dict[Value, Value] = {}
    for value in graph.constants():
        if value.dtype is not DType.SHAPE and size_in_file(value.type) >= LARGE:
            inputs[value] = Value(value.type, name=value.name)
    operators: list[Operator] = []
    for operator in graph.operators:
        copied = copy.copy(operator)
        copied.inputs = tuple([inputs.get(value, value) for value in operator.inputs])
        operators.append(copied)
    all_inputs = [*graph.inputs, *inputs.values()]
    outputs = [inputs.get(value, value) for value in graph.outputs]
    small = Graph(all_inputs, outputs, operators, graph.name)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "small.tosa")
        file.write_bytes(TosaFile(small, spec).join())
        found = legality(file, spec)
    suffix = f"; of a copy with {len(inputs)} large constants as inputs"
    return found._replace(detail=found.detail + suffix)


def _pipeline(file: Path, spec: TosaSpec) -> str:
    """Return tosa-opt's passes, which read a file and validate it."""
    profiles = ",".join(f"pro_{p.lower()}" for p in sorted(spec.profiles))
    extensions = ",".join(e.replace("-", "_") for e in sorted(spec.extensions))
    version = "1.0" if spec.version == (1, 0) else "1.1.draft"
    target = (
        f"specification_version={version} level={spec.level.lower()}"
        f" profiles={profiles} extensions={extensions}"
    )
    return (
        f"builtin.module(tosa-deserialize{{tosa-flatbuffer-filename={file}}},"
        f"tosa-attach-target{{{target}}},tosa-validate{{strict-op-spec-alignment}})"
    )


def _reference_model(
    file: Path, graph: Graph, spec: TosaSpec, inputs: Sequence[Array]
) -> Verdict:
    """Return the verdict of the reference model, which runs the file on ``inputs``."""
    name = "reference model"
    try:
        metadata.distribution("tosa-tools")
    except metadata.PackageNotFoundError:
        return Verdict(name, None, "not installed: pip install tosa-tools")
    why = _why_not_run(graph, file.stat().st_size)
    if why is not None:
        return Verdict(name, None, why)
    level = "EIGHTK" if spec.level == "8K" else "NONE"
    with tempfile.TemporaryDirectory() as folder:
        arrays = Path(folder, "inputs.npz")
        np.savez(arrays, **{f"x{k}": x for k, x in enumerate(inputs)})
        arguments = [str(file.resolve()), str(arrays), level]
        done = _call([sys.executable, "-c", _RUN, *arguments])
    if done.returncode != 0:
        return Verdict(name, False, _reason(done.stderr))
    return Verdict(name, True, "runs on random inputs")


def _why_not_run(graph: Graph, size: int) -> str | None:
    """Return why the reference model cannot run the graph, or None.

    Such a limit is no fault of the graph.
    """
    if size > WHOLE_UP_TO:
        gigabytes = 4 * size / 1e9
        return (
            f"it would take about {gigabytes:.1f} GB of memory; it is used for"
            " files up to 1 GiB"
        )
    for value in graph.inputs:
        if value.dtype in (DType.INT4, DType.INT48, *BLOCK_SCALED):
            return f"its Python binding does not take inputs of {value.dtype}"
    if is_dynamic(graph):
        return "it needs every size at compile time"
    for body in graph.reachable():
        if any(isinstance(operator, CUSTOM) for operator in body.operators):
            return "it does not run CUSTOM, which only its implementation knows"
    return None


def _reason(errors: str) -> str:
    """Return the last lines of stderr, without warnings and traceback frames."""
    lines: list[str] = []
    for line in errors.splitlines():
        is_warning = "WARNING" in line or "gdb" in line
        is_frame = line.startswith((" ", "Traceback"))
        if line.strip() and not is_warning and not is_frame:
            lines.append(line)
    return "; ".join(lines[-3:])


def _program(name: str) -> Path | None:
    """Return a program of tosa-tools. Its wheel omits the executable bit."""
    try:
        tools = metadata.distribution("tosa-tools")
    except metadata.PackageNotFoundError:
        return None
    path = Path(str(tools.locate_file(f"bin/{name}")))
    if not path.is_file():
        return None
    if not os.access(path, os.X_OK):
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def _call(command: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a tool with ``text`` as its input, and return its errors.

    If there is a gdb, tools print a backtrace of every refusal, so folders with gdb are
    not on their path. Their output is dropped: for a small file with operators that
    share a long text, they print gigabytes.
    """
    path = os.pathsep.join(p for p in os.get_exec_path() if not Path(p, "gdb").exists())
    environment = os.environ | {"PATH": path}
    try:
        with tempfile.TemporaryFile() as errors:
            done = subprocess.run(
                command,
                input=text.encode(),
                stdout=subprocess.DEVNULL,
                stderr=errors,
                timeout=SECONDS,
                env=environment,
            )
            errors.seek(0)
            text_of_errors = errors.read(_MOST_ERRORS).decode(errors="replace")
        return subprocess.CompletedProcess(command, done.returncode, "", text_of_errors)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(
            command, 1, "", f"error: it took longer than {SECONDS} seconds"
        )
