"""Graphs of any size: exported programs that torch.fx builds, because torch.export
would take minutes.

Needs torch only, so that an environment without delegraph can use it too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
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
REFUSED = aten.sin.default
"""The operator that no backend here takes."""
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


SHAPES: dict[str, Operands] = {"chain": chain, "residual": residual, "dense": dense}


def sizes(largest: int) -> list[int]:
    """1,000 nodes, and twice as many each time, up to ``largest``."""
    return [1000 * 2**k for k in range(math.floor(math.log2(largest / 1000)) + 1)]


def at_random(share: float) -> Callable[[int, random.Random], bool]:
    """That share of the nodes, at places that the seed fixes."""
    return lambda number, draw: draw.random() < share


def every(period: int) -> Callable[[int, random.Random], bool]:
    """The last of each ``period`` nodes."""
    return lambda number, draw: number % period == period - 1


def program(
    shape: str, nodes: int, refused: Callable[[int, random.Random], bool]
) -> ExportedProgram:
    """An exported program of one input with ``nodes`` calls of the shape; those that
    are ``refused`` call REFUSED.
    """
    draw = random.Random(0)
    graph = Graph()
    operands = SHAPES[shape]
    values = [graph.placeholder("x")]
    for number in range(nodes):
        values.append(_call(graph, operands(values, draw), refused(number, draw)))
    graph.output((values[-1],))
    with FakeTensorMode():
        value = torch.empty(0)  # no elements: then cat gives the shape that it takes
    for node in values:
        node.meta["val"] = value
    return _exported(graph)


def _call(graph: Graph, operands: tuple[Node, ...], refused: bool) -> Node:
    if refused:
        return graph.call_function(REFUSED, operands[:1])
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
    call = ModuleCallSignature([], [], inputs, outputs)
    return ExportedProgram(
        torch.nn.Module(), graph, signature, {}, {}, [ModuleCallEntry("", call)]
    )
