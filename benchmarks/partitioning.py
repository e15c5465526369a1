"""How the time of CapabilityPartitioner grows with the graph, on graphs that torch.fx builds.

    python benchmarks/partitioning.py [--largest 32000] [--repeats 3]

CPU seconds on one thread, the median of ``repeats``; graphs of 1,000 nodes and twice as many each time. ``exponent`` is
the slope of log(seconds) over log(nodes), by least squares: 1 is linear. Garbage collection is suspended, as
delegraph.lower does, because a full collection takes longer than most of these runs. One node in ten is of an
operator that the backend refuses, at random places (seeded), but in the shape "all taken".
"""

from __future__ import annotations

import argparse
import gc
import math
import random
from collections.abc import Callable
from statistics import fmean, median

import measuring
import torch
from delegraph.partitioner import CapabilityPartitioner
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

aten = torch.ops.aten
Operands = Callable[[list[Node], random.Random], tuple[Node, ...]]


def chain(values: list[Node], draw: random.Random) -> tuple[Node, ...]:
    """Each node reads the one before it."""
    return (values[-1],)


def residual(values: list[Node], draw: random.Random) -> tuple[Node, ...]:
    """Every fourth node adds what was there four nodes before."""
    return (values[-1], values[-4]) if len(values) % 4 == 0 else (values[-1],)


def dense(values: list[Node], draw: random.Random) -> tuple[Node, ...]:
    """Each node concatenates eight of the last hundred."""
    return tuple(draw.choices(values[-100:], k=8))


SHAPES: dict[str, tuple[Operands, float]] = {
    "chain": (chain, 0.1),
    "residual": (residual, 0.1),
    "dense": (dense, 0.1),
    "dense, all taken": (dense, 0.0),
}


def main() -> None:
    """Measure every shape at every size and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=32_000, help="nodes of the largest graph")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sizes = [1000 * 2**k for k in range(math.floor(math.log2(arguments.largest / 1000)) + 1)]
    command = f"python benchmarks/partitioning.py --largest {arguments.largest} --repeats {arguments.repeats}"
    print(measuring.heading(command, ["torch", "delegraph"]))
    header = ("graph", *(f"{n:,} nodes, s" for n in sizes), "exponent", "partitions of the largest")
    print(measuring.table(header, (_row(shape, sizes, arguments.repeats) for shape in SHAPES)))


def _row(shape: str, sizes: list[int], repeats: int) -> list[str]:
    seconds: list[float] = []
    for nodes in sizes:
        runs = [_measure(shape, nodes) for _ in range(repeats)]
        seconds.append(median(s for s, _ in runs))
        partitions = runs[0][1]
    return [shape, *(f"{s:.3f}" for s in seconds), f"{_exponent(sizes, seconds):.2f}", f"{partitions:,}"]


def _measure(shape: str, nodes: int) -> tuple[float, int]:
    """CPU seconds, and the number of partitions."""
    exported = program(shape, nodes)
    partitioner = CapabilityPartitioner(_why_not, "Measured")
    gc.collect()
    gc.disable()
    result, seconds = measuring.cpu_seconds(lambda: partitioner.partition(exported))
    gc.enable()
    return seconds, len(result.partition_tags)


def _why_not(node: Node) -> str | None:
    return "no sine here" if node.target is aten.sin.default else None


def _exponent(sizes: list[int], seconds: list[float]) -> float:
    xs, ys = [math.log(n) for n in sizes], [math.log(s) for s in seconds]
    x0, y0 = fmean(xs), fmean(ys)
    return sum((x - x0) * (y - y0) for x, y in zip(xs, ys, strict=True)) / sum((x - x0) ** 2 for x in xs)


def program(shape: str, nodes: int) -> ExportedProgram:
    """An exported program of one input with ``nodes`` calls of the shape."""
    operands, refused = SHAPES[shape]
    draw, graph, value = random.Random(0), Graph(), torch.empty(4, device="meta")
    values = [graph.placeholder("x")]
    for _ in range(nodes):
        values.append(_call(graph, operands(values, draw), draw.random() < refused))
    graph.output((values[-1],))
    for node in values:
        node.meta["val"] = value
    return _exported(graph)


def _call(graph: Graph, operands: tuple[Node, ...], refused: bool) -> Node:
    if refused:
        return graph.call_function(aten.sin.default, operands[:1])
    if len(operands) == 1:
        return graph.call_function(aten.relu.default, operands)
    if len(operands) == 2:
        return graph.call_function(aten.add.Tensor, operands)
    return graph.call_function(aten.cat.default, (list(operands),))


def _exported(graph: Graph) -> ExportedProgram:
    output = next(iter(graph.output_node().all_input_nodes))
    signature = ExportGraphSignature(
        [InputSpec(InputKind.USER_INPUT, TensorArgument("x"), None)],
        [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(output.name), None)],
    )
    inputs = pytree.tree_flatten(((0,), {}))[1]
    outputs = pytree.tree_flatten((0,))[1]
    call = ModuleCallSignature([TensorArgument("x")], [TensorArgument(output.name)], inputs, outputs)
    return ExportedProgram(torch.nn.Module(), graph, signature, {}, {}, [ModuleCallEntry("", call)])


if __name__ == "__main__":
    main()
