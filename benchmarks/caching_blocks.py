"""What a cache saves of 24 partitions whose compiler takes a minute for each: warm,
with a changed weight, all equal.

    python benchmarks/caching_blocks.py [--seconds 60]

Each row is a process of its own. 24 linear layers, with an operator of the host between
them; all 24 compile at the same time, in threads that wait. Seconds of wall time and of
CPU time of ``delegraph.lower`` of a program that was exported before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import delegraph
import publishing
import torch
from caching import LongBackend
from delegraph.discovery.registry import Registry
from delegraph.partitioner import CapabilityPartitioner
from delegraph_workers import Compiler

LAYERS = 24
ROWS = [
    ("24 partitions, cold", "different"),
    ("the same in another process", "different"),
    ("the same, one weight changed by 1e-6", "changed"),
    ("24 equal blocks, cold", "equal"),
]


class Blocks(torch.nn.Module):
    """Linear layers; ``kind`` is one of those in ROWS."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(kind == "equal")
        layers = [torch.nn.Linear(64, 64) for _ in range(LAYERS)]
        if kind == "equal":
            for layer in layers[1:]:
                layer.load_state_dict(layers[0].state_dict())
        if kind == "changed":
            layers[7].weight.data[3, 5] += 1e-6
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.sin(layer(x))
        return x


class WaitingBackend(LongBackend):
    """LongBackend, of which many may wait at a time."""

    thread_safe = True


def measure(kind: str, folder: str, seconds: float) -> dict[str, Any]:
    """Lower the blocks with a cache in ``folder``; what was compiled, and what it took."""
    registry = Registry(discover=False)
    registry.register(WaitingBackend)

    def why_not(node: Any) -> str | None:
        return "the host's" if node.target is torch.ops.aten.sin.default else None

    chosen = CapabilityPartitioner(why_not, "WaitingBackend")
    program = torch.export.export(Blocks(kind).eval(), (torch.ones(1, 64),))
    small = torch.export.export(torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),))
    delegraph.lower(small, backends=[chosen], registry=registry)
    LongBackend.seconds = seconds
    with ThreadPoolExecutor(LAYERS) as executor:
        wall = time.perf_counter()
        cpu = time.process_time()
        made = delegraph.lower(
            program,
            backends=[chosen],
            registry=registry,
            compiler=Compiler(folder, executor),
        )
        wall = time.perf_counter() - wall
        cpu = time.process_time() - cpu
    how = Counter(
        "equal to another" if d.compiled.startswith("equal") else str(d.compiled)
        for d in made.report.delegates
    )
    return {"how": dict(how), "wall": wall, "cpu": cpu}


def main() -> None:
    parser = publishing.parser(__doc__)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="what a compile takes"
    )
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        print(json.dumps(measure(*args.row, args.seconds)))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in ROWS:
            command = [
                sys.executable,
                __file__,
                "--seconds",
                str(args.seconds),
                "--row",
                kind,
                folder,
            ]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            told = json.loads(done.stdout.splitlines()[-1])
            how = ", ".join(f"{n} {what}" for what, n in told["how"].items())
            rows.append(
                publishing.told(
                    [name, how, f"{told['wall']:.2f}", f"{told['cpu']:.2f}"]
                )
            )
    table = publishing.Table(["what", "blobs", "lowered, s", "CPU time, s"], rows)
    publishing.report(args, "caching_blocks", ["torch", "delegraph"], table)


if __name__ == "__main__":
    main()
