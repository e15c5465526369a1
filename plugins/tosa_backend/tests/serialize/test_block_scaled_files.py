"""Files with block-scaled tensors from the generator of tosa-tools are read, evaluated and
written as the reference model does. The tests are slow, because generating is.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from delegraph_tosa.evaluate import evaluate
from delegraph_tosa.ir.block_scaled_arrays import paired, parted
from delegraph_tosa.ir.graph import Graph
from delegraph_tosa.ir.types import (
    ARRAY_DTYPES,
    BLOCK_SCALED,
    SMALL_FLOATS,
    Type,
    stored_types,
)
from delegraph_tosa.serialize import TosaFile, read
from delegraph_tosa.serialize.elements import pack, unpack
from delegraph_tosa.spec import TosaSpec, required
from delegraph_tosa.text import parse, render
from delegraph_tosa.validate import violations

from ..support import reference_tools

OPERATORS = "^(cast|concat|reshape|row_gather|resize|.*block_scaled)$"
LIBRARY = "tosa_reference_model/libtosa_reference_generate_lib.so"
BLOCKS = [
    *("fp4e2m1", "fp6e2m3", "fp6e3m2", "mxint8", "fp8ue8m0"),
    *(str(t) for t in BLOCK_SCALED),
]

pytestmark = pytest.mark.slow


def generated(folder: Path) -> list[Path]:
    """Folders with a file, its inputs and their description each."""
    reference_tools.tools()
    library = metadata.distribution("tosa-tools").locate_file(LIBRARY)
    command = [
        *(
            Path(sys.executable).with_name("tosa_verif_build_tests"),
            "-o",
            folder,
            "--seed",
            "7",
        ),
        *(
            "--test-type",
            "positive",
            "--generate-lib-path",
            library,
            "--num-rand-permutations",
            "1",
        ),
        *(
            "--no-special-tests",
            "--target-rank",
            "2",
            "3",
            "4",
            "--tensor-dim-range",
            "1,8",
        ),
        *("--filter", OPERATORS, "--target-dtype", *BLOCKS),
    ]
    subprocess.run(
        [str(c) for c in command],
        check=True,
        capture_output=True,
        cwd=folder,
        timeout=1800,
    )
    return sorted(path.parent for path in folder.rglob("desc.json"))


def array(folder: Path, name: str, type: Type) -> np.ndarray:
    """An input as memory holds it: the generator packs elements as files do, and has
    scales beside.
    """
    held = np.load(folder / name)
    if type.dtype in BLOCK_SCALED:
        values, scales = stored_types(type)
        beside = np.load(folder / name.replace(".npy", "_scale.npy"))
        return paired(
            unpack(memoryview(held.tobytes()), values),
            beside.view(np.uint8).reshape(scales.shape),
            type,
        )
    if type.dtype in SMALL_FLOATS:
        return unpack(memoryview(held.tobytes()), type)
    return held.view(ARRAY_DTYPES[type.dtype]).reshape(type.shape)


def by_the_model(folder: Path, tosa: bytes) -> dict[str, bytes]:
    """Outputs by file name, from the reference model's program, which takes
    block-scaled inputs.
    """
    tools = reference_tools.tools()
    with tempfile.TemporaryDirectory() as out:
        place = Path(out)
        for file in folder.glob("*.npy"):
            (place / file.name).symlink_to(file)
        (place / "test.tosa").write_bytes(tosa)
        (place / "desc.json").write_bytes((folder / "desc.json").read_bytes())
        command = [
            *(tools / "tosa_reference_model", "--operator_fbs", tools / "tosa.fbs"),
            *(
                "--test_desc",
                place / "desc.json",
                "--flatbuffer_dir",
                place,
                "--output_dir",
                place,
            ),
        ]
        done = reference_tools._call(command, cwd=place)
        assert done.returncode == 0, (folder, done.stderr[-500:])
        return {
            f.name: np.load(f).tobytes()
            for f in place.glob("*.npy")
            if not f.is_symlink()
        }


def by_us(
    graph: Graph, folder: Path, inputs: list[str], outputs: list[str]
) -> dict[str, bytes]:
    given = [
        array(folder, name, v.type)
        for name, v in zip(inputs, graph.inputs, strict=True)
    ]
    found: dict[str, bytes] = {}
    for name, value, result in zip(
        outputs, graph.outputs, evaluate(graph, given), strict=True
    ):
        parts = parted(result, value.type) if value.dtype in BLOCK_SCALED else (result,)
        names = (name, name.replace(".npy", "_scale.npy"))
        for part, type, file in zip(
            parts, stored_types(value.type), names, strict=False
        ):
            found[file] = bytes(pack(np.ascontiguousarray(part), type))
    return found


def test_generated_files_are_read_evaluated_and_written(tmp_path):
    folders = generated(tmp_path)
    texts = ""
    for folder in folders:
        described = json.loads((folder / "desc.json").read_text())
        file = (folder / "test.tosa").read_bytes()
        graph = read(file)
        spec = TosaSpec((1, 1), *required(graph, (1, 1)))
        assert violations(graph, spec) == [], folder
        again = TosaFile(graph, spec).join()
        assert render(parse(render(graph))) == render(graph) == render(read(again))
        texts += render(graph)
        outputs = by_the_model(folder, file)
        assert outputs == by_the_model(folder, again), folder
        assert outputs == by_us(
            graph, folder, described["ifm_file"], described["ofm_file"]
        ), folder
    assert len(folders) > 150
    assert all(str(dtype) in texts for dtype in BLOCK_SCALED)
