"""Files from the generator of tosa-tools: legal ones survive reading and writing, illegal
ones are refused. ``DELEGRAPH_GENERATED_OPERATORS`` selects more operators, up to ``.*``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from delegraph.errors import FormatError
from delegraph_tosa.ir.types import ARRAY_DTYPES, BLOCK_SCALED, DType
from delegraph_tosa.serialize import TosaFile, read
from delegraph_tosa.spec import TosaSpec, required, required_version
from delegraph_tosa.spec.target import extensions
from delegraph_tosa.validate import violations

from ..support import reference_tools

OPERATORS = os.environ.get(
    "DELEGRAPH_GENERATED_OPERATORS", "^(abs|clz|exp|reduce_sum|argmax)$"
)
PACKED = {
    DType.INT4,
    DType.INT48,
    DType.FP4E2M1,
    DType.FP6E2M3,
    DType.FP6E3M2,
    *BLOCK_SCALED,
}
"""Element types that the reference model's Python binding does not take;
test_block_scaled_files.py has the last.
"""
LIBRARY = "tosa_reference_model/libtosa_reference_generate_lib.so"

pytestmark = pytest.mark.slow


def generated(kind: str, folder: Path) -> list[Path]:
    """Descriptions of the files of a kind, positive or negative."""
    reference_tools.tools()
    library = metadata.distribution("tosa-tools").locate_file(LIBRARY)
    command = [
        *(
            Path(sys.executable).with_name("tosa_verif_build_tests"),
            "-o",
            folder,
            "--seed",
            "7",
            "--test-type",
            kind,
        ),
        *(
            "--generate-lib-path",
            library,
            "--num-rand-permutations",
            "1",
            "--tosa-version",
            "1.0.0",
        ),
        *(
            "--no-special-tests",
            "--target-rank",
            "2",
            "3",
            "4",
            "--tensor-dim-range",
            "1,8",
            "--filter",
            OPERATORS,
        ),
    ]
    subprocess.run(
        [str(c) for c in command],
        check=True,
        capture_output=True,
        cwd=folder,
        timeout=1800,
    )
    return sorted(folder.rglob("desc.json"))


def refused(file: bytes) -> str:
    """Our reason of refusal for the version that the file needs, with everything in it."""
    try:
        graph = read(file)
    except FormatError as problem:
        return str(problem)
    version = required_version(graph)
    spec = TosaSpec(version, frozenset({"FP", "INT"}), frozenset(extensions(version)))
    return "; ".join(map(str, violations(graph, spec)))


def test_illegal_files_are_refused(tmp_path):
    found = [
        path
        for path in generated("negative", tmp_path)
        if not refused((path.parent / "test.tosa").read_bytes())
    ]
    assert found == []


def test_legal_files_are_accepted_and_written_again(tmp_path):
    jobs = []
    for path in generated("positive", tmp_path):
        file = (path.parent / "test.tosa").read_bytes()
        assert not refused(file), path
        graph = read(file)
        needed = required(graph, version := required_version(graph))
        again = TosaFile(
            graph, TosaSpec(version, needed.profiles, needed.extensions)
        ).join()
        if not any(v.dtype in PACKED for v in (*graph.inputs, *graph.outputs)):
            names = json.loads(path.read_text())["ifm_file"]
            inputs = [
                np.load(path.parent / name).view(ARRAY_DTYPES[v.dtype])
                for name, v in zip(names, graph.inputs, strict=True)
            ]
            jobs += [(file, inputs), (again, inputs)]
    outputs = reference_tools.run_or_refusal_of_each(jobs, timeout=1800)
    assert len(outputs) > 100
    for first, second in zip(outputs[::2], outputs[1::2], strict=True):
        assert [o.tobytes() for o in first] == [o.tobytes() for o in second]
