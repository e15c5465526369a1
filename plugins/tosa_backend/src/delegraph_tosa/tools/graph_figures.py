"""Figures of a graph: multiply-accumulates, bytes by type, live memory.

A size that is known at run time only counts as the least that it can be.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ..evaluate.program import last_uses
from ..ir import operators as ops
from ..ir.dynamic_sizes import range_of
from ..ir.graph import Graph, Operator, Value
from ..ir.types import DType
from ..serialize.elements import size_in_file


@dataclass(frozen=True)
class Figures:
    """Figures of a whole program.

    Every graph of its control flow counts once, however often it would run.
    """

    operators: dict[str, int]
    """Operator -> how often it is there, the most frequent first."""
    constants: int
    """How many there are, shapes included."""
    parameters: int
    """Elements of constants that are no shapes."""
    multiply_accumulates: int
    """Of convolutions and matrix products."""
    constant_bytes: dict[str, int]
    """Element type -> bytes of constants."""
    computed_bytes: dict[str, int]
    """Element type -> bytes of inputs and results."""
    largest_live_bytes: int
    """The most bytes of inputs and results alive at once, in file order."""


def figures(graph: Graph) -> Figures:
    """Return the figures of a graph and of all graphs inside of it."""
    graphs = graph.reachable()
    constants = dict.fromkeys(v for g in graphs for v in g.constants())
    computed = [
        v
        for g in graphs
        for v in (*g.inputs, *(o for op in g.operators for o in op.outputs))
    ]
    return Figures(
        operators=dict(
            Counter(op.name for g in graphs for op in g.operators).most_common()
        ),
        constants=len(constants),
        parameters=sum(
            math.prod(v.shape) for v in constants if v.dtype is not DType.SHAPE
        ),
        multiply_accumulates=sum(
            multiply_accumulates(op) for g in graphs for op in g.operators
        ),
        constant_bytes=_bytes_by_type(list(constants)),
        computed_bytes=_bytes_by_type(computed),
        largest_live_bytes=_largest(graphs),
    )


def _bytes(value: Value) -> int:
    return range_of(size_in_file(value.type))[0]


def _bytes_by_type(values: list[Value]) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for value in values:
        counted[str(value.dtype)] += _bytes(value)
    return dict(counted.most_common())


def multiply_accumulates(operator: Operator) -> int:
    """Products that are summed up, those with padding included.

    0 for all but convolutions and matrix products.
    """
    terms = _TERMS.get(type(operator))
    if terms is None:
        return 0
    counted = (
        operator.inputs[0]
        if isinstance(operator, ops.TRANSPOSE_CONV2D)
        else operator.outputs[0]
    )
    return range_of(math.prod(counted.shape) * terms(operator))[0]


def _kernel_and_channels(operator: Operator) -> int:
    return math.prod(operator.inputs[1].shape[1:])


_TERMS: dict[type[Operator], Callable[[Operator], int]] = {
    ops.CONV2D: _kernel_and_channels,
    ops.CONV3D: _kernel_and_channels,
    ops.CONV2D_BLOCK_SCALED: lambda op: math.prod(op.inputs[2].shape[1:]),
    ops.DEPTHWISE_CONV2D: lambda op: math.prod(op.inputs[1].shape[:2]),
    ops.TRANSPOSE_CONV2D: lambda op: math.prod(op.inputs[1].shape[:3]),
    **dict.fromkeys(
        (ops.MATMUL, ops.MATMUL_T, ops.MATMUL_T_BLOCK_SCALED),
        lambda op: op.inputs[0].shape[2],
    ),
}
"""Maps an operator to products per element of its result or input.

TRANSPOSE_CONV2D counts by input.
"""


def _largest(graphs: list[Graph]) -> int:
    """Return the largest live set of the first graph.

    The memory of a body is added where it is called.
    """
    needed: dict[Graph, int] = {}
    for graph in reversed(graphs):
        needed[graph] = largest_live_bytes(graph, needed)
    return needed[graphs[0]]


def largest_live_bytes(graph: Graph, of_bodies: dict[Graph, int]) -> int:
    """Return the largest live memory of inputs and results at an operator."""
    dead = last_uses(graph)
    live = sum(_bytes(v) for v in dict.fromkeys(graph.inputs))
    largest = live
    for operator, ends in zip(graph.operators, dead, strict=True):
        live += sum(_bytes(v) for v in operator.outputs)
        bodies = [
            v for v in operator.attribute_values().values() if isinstance(v, Graph)
        ]
        largest = max(largest, live + max((of_bodies[b] for b in bodies), default=0))
        live -= sum(_bytes(v) for v in ends)
    return largest
