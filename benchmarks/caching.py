"""What a cache of compiled partitions saves and costs: lowerings cold and warm, each in
a process of its own.

    python benchmarks/caching.py [--seconds 60]

XNNPACK, and a backend that takes ``--seconds`` a partition and returns some weights
backwards. The models of examples/ are exported before; what is measured is
``delegraph.lower`` of the exported program, seconds of wall time and of CPU time, and
its steps ``decompose-and-partition`` and ``compile``. Each process has lowered a small
layer before.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import delegraph
import publishing
import torch
from delegraph.backend import BackendDetails, CompileSpec, PreprocessResult
from delegraph.discovery.registry import Registry
from delegraph.partitioner import CapabilityPartitioner
from delegraph_programs import constant_tensor, placeholders
from delegraph_workers import Compiler

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import mobilenet_v2

ROWS = [
    ("MobileNetV2", "xnnpack"),
    ("MobileNetV2", "long"),
]
COLUMNS = (
    "model",
    "backend",
    "delegates",
    "blobs",
    "lowered, s",
    "CPU time, s",
    "partition, s",
    "compile, s",
)
MODELS = {"MobileNetV2": mobilenet_v2.mobilenet_v2}


class LongBackend(BackendDetails):
    """A compiler that takes long."""

    seconds: ClassVar[float] = 0

    @staticmethod
    def fingerprint(compile_specs: list[CompileSpec]) -> str:
        return ""

    @staticmethod
    def preprocess(
        edge_program: Any, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        time.sleep(LongBackend.seconds)
        given = [
            constant_tensor(edge_program, spec)
            for _, spec in placeholders(edge_program)
            if spec.target
        ]
        return PreprocessResult(
            b"".join(
                t.detach().contiguous().view(-1).numpy()[::-1].tobytes()
                for t in given[:8]
            )
        )


def measure(
    model: str, backend: str, folder: str | None, seconds: float
) -> dict[str, Any]:
    registry = Registry(discover=backend != "long")
    registry.register(LongBackend)
    chosen: list[Any] = [
        (
            backend
            if backend != "long"
            else CapabilityPartitioner(lambda node: None, "LongBackend")
        )
    ]
    small = torch.export.export(torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),))
    program = torch.export.export(*MODELS[model]())
    with tempfile.TemporaryDirectory() as other:
        delegraph.lower(
            small, backends=chosen, registry=registry, compiler=Compiler(other)
        )
    LongBackend.seconds = seconds
    wall = time.perf_counter()
    cpu = time.process_time()
    lowered = delegraph.lower(
        program, backends=chosen, registry=registry, compiler=Compiler(folder or False)
    )
    wall = time.perf_counter() - wall
    cpu = time.process_time() - cpu
    steps = lowered.report.seconds
    return {
        "wall": wall,
        "cpu": cpu,
        "partition": steps["decompose-and-partition"],
        "compile": steps["compile"],
        "whence": sorted(
            {row.compiled or "no cache" for row in lowered.report.delegates}
        ),
        "delegates": len(lowered.delegates),
    }


def main() -> None:
    parser = publishing.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument(
        "--one",
        nargs=3,
        metavar=("MODEL", "BACKEND", "FOLDER"),
        help="for its own processes",
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.one:
        model, backend, folder = args.one
        print(json.dumps(measure(model, backend, folder or None, args.seconds)))
        return
    rows = []
    for model, backend in ROWS:
        with tempfile.TemporaryDirectory() as folder:
            for place in ("", folder, folder):
                words = [
                    sys.executable,
                    __file__,
                    "--seconds",
                    str(args.seconds),
                    "--one",
                    model,
                    backend,
                    place,
                ]
                done = subprocess.run(words, capture_output=True, text=True, check=True)
                row = json.loads(done.stdout.splitlines()[-1])
                times = [
                    f"{row[key]:.2f}" for key in ("wall", "cpu", "partition", "compile")
                ]
                cells = [
                    model,
                    backend,
                    str(row["delegates"]),
                    ", ".join(row["whence"]),
                    *times,
                ]
                rows.append(publishing.told(cells))
    packages = ["torch", "executorch", "delegraph", "delegraph-executorch"]
    publishing.report(
        args, "caching", packages, publishing.Table(COLUMNS, rows, keys=4)
    )


if __name__ == "__main__":
    main()
