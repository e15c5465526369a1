"""What a pool of two processes saves where a compiler takes long, and what isolation
costs where it does not.

    python benchmarks/pool.py [--seconds 5] [--computing]

MobileNetV2 in eight partitions of a backend that waits for so many seconds each (with
``--computing``, that uses so many seconds of a processor), lowered in this process, in
a pool of two processes, and with ``isolation="process"``. Wall seconds of the step that
compiles and of the whole lowering, each in a process of its own; workers import torch
while the model is exported, or have done so before ("warm pool").
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import publishing

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

BACKEND = """
import os, time
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.partitioner import CapabilityPartitioner, Limits
from delegraph.plugin import BackendSpec, PartitionerSpec, hookimpl


class SlowBackend(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        seconds = float(os.environ["SLOW_SECONDS"])
        clock = time.process_time if os.environ.get("SLOW_COMPUTES") else time.monotonic
        end = clock() + seconds
        while clock() < end:
            time.sleep(0 if os.environ.get("SLOW_COMPUTES") else 0.01)
        return PreprocessResult(str(edge_program.graph).encode())


class SlowPartitioner(CapabilityPartitioner):
    def __init__(self):
        super().__init__(lambda node: None, "SlowBackend", limits=Limits(largest=20))


@hookimpl
def delegraph_backends():
    return [BackendSpec("slow", "slow_backend:SlowBackend", "SlowBackend", 1)]


@hookimpl
def delegraph_partitioners():
    return [PartitionerSpec("slow", "slow", "slow_backend:SlowPartitioner", default=True)]
"""


def install(folder: Path) -> None:
    """Put the backend into a folder as a distribution."""
    (folder / "slow_backend.py").write_text(BACKEND)
    info = folder / "slow_backend-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: slow-backend\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text("[delegraph]\nslow = slow_backend\n")


def lower(way: str) -> None:
    """Lower the model and print seconds of the compile step, of the lowering, and a
    digest of the blobs.
    """
    import hashlib

    import delegraph
    import mobilenet_v2
    from delegraph_workers import Compiler
    from delegraph_workers.execute import warm

    model, inputs = mobilenet_v2.mobilenet_v2()
    spawn = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(2, mp_context=spawn) if "pool" in way else nullcontext()
    ) as executor:
        pids: set[int] = set()
        while way == "warm pool" and len(pids) < 2:
            pids |= {
                future.result()
                for future in [executor.submit(warm, ["slow"]) for _ in range(8)]
            }
        start = time.monotonic()
        isolation = "process" if way == "isolated" else None
        compiler = Compiler(executor=executor, isolation=isolation)
        made = delegraph.lower(model, inputs, backends=["slow"], compiler=compiler)
        seconds = time.monotonic() - start
    digest = hashlib.sha256(
        b"".join(bytes(d.processed_bytes) for d in made.delegates)
    ).hexdigest()[:12]
    print(
        f"{made.report.seconds['compile']:.2f} {seconds:.2f} {len(made.delegates)}"
        f" {digest}"
    )


def main() -> None:
    parser = publishing.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--computing", action="store_true")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        return lower(args.way)
    rows = []
    blobs = set()
    with tempfile.TemporaryDirectory() as folder:
        install(Path(folder))
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        environ = {**os.environ, "PYTHONPATH": path, "SLOW_SECONDS": str(args.seconds)}
        if args.computing:
            environ["SLOW_COMPUTES"] = "1"
        for way in ("here", "pool", "warm pool", "isolated"):
            command = [sys.executable, __file__, "--way", way]
            done = subprocess.run(
                command, env=environ, check=True, stdout=subprocess.PIPE, text=True
            )
            *cells, digest = done.stdout.split()
            blobs.add(digest)
            rows.append(publishing.told([way, *cells]))
    if len(blobs) > 1:
        raise SystemExit("the blobs are not equal")
    name = "computing" if args.computing else ""
    table = publishing.Table(
        ("where", "compile, s", "lowering, s", "partitions"), rows, name
    )
    return publishing.report(
        args, "pool", ["torch", "delegraph", "delegraph-workers"], table
    )


if __name__ == "__main__":
    main()
