"""How the time of CapabilityPartitioner grows with the graph, on graphs that torch.fx
builds.

    python benchmarks/partitioning.py [--largest 32000] [--repeats 3]

CPU seconds on one thread, the median of ``repeats``; graphs of 1,000 nodes and twice as
many each time. ``exponent`` is the slope of log(seconds) over log(nodes), by least
squares: 1 is linear. Garbage collection is suspended, as delegraph.lower does, because
a full collection takes longer than most of these runs. One node in ten is of an
operator that the backend refuses, at random places (seeded), but in the shape "all
taken".
"""

from __future__ import annotations

import gc
from statistics import median

import graphs
import measuring
import publishing
import torch
from delegraph.partitioner import CapabilityPartitioner
from torch.fx import Node

ROWS = {
    "chain": ("chain", 0.1),
    "residual": ("residual", 0.1),
    "dense": ("dense", 0.1),
    "dense, all taken": ("dense", 0.0),
}


def main() -> None:
    """Measure every shape at every size and print a table."""
    parser = publishing.parser(__doc__)
    parser.add_argument(
        "--largest", type=int, default=32_000, help="nodes of the largest graph"
    )
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sizes = graphs.sizes(arguments.largest)
    header = (
        "graph",
        *(f"{n:,} nodes, s" for n in sizes),
        "exponent",
        "partitions of the largest",
    )
    table = publishing.Table(
        header, [_row(row, sizes, arguments.repeats) for row in ROWS]
    )
    publishing.report(arguments, "partitioning", ["torch", "delegraph"], table)


def _row(row: str, sizes: list[int], repeats: int) -> list[str]:
    seconds: list[float] = []
    for nodes in sizes:
        runs = [_measure(*ROWS[row], nodes) for _ in range(repeats)]
        seconds.append(median(s for s, _ in runs))
        partitions = runs[0][1]
    return [
        row,
        *(f"{s:.3f}" for s in seconds),
        f"{measuring.exponent(sizes, seconds):.2f}",
        f"{partitions:,}",
    ]


def _measure(shape: str, share: float, nodes: int) -> tuple[float, int]:
    """CPU seconds, and the number of partitions."""
    exported = graphs.program(shape, nodes, graphs.at_random(share))
    partitioner = CapabilityPartitioner(_why_not, "Measured")
    gc.collect()
    gc.disable()
    result, seconds = measuring.cpu_seconds(lambda: partitioner.partition(exported))
    gc.enable()
    return seconds, len(result.partition_tags)


def _why_not(node: Node) -> str | None:
    return "no sine here" if node.target is graphs.REFUSED else None


if __name__ == "__main__":
    main()
