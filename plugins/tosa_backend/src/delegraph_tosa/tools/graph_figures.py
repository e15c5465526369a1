"""Figures of a graph: multiply-accumulates, bytes by type, live memory.

A size that is known at run time only counts with its smallest value.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
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
    """Operator -> how many of it the graph has, the most frequent first."""
    constants: int
    """Number of constants, including shapes."""
    parameters: int
    """Elements of constants that are no shapes."""
    multiply_accumulates: int
    """Products that convolutions and matrix products compute and add up."""
    constant_bytes: dict[str, int]
    """Element type -> bytes of constants."""
    computed_bytes: dict[str, int]
    """Element type -> bytes of inputs and results."""
    largest_live_bytes: int
    """The most bytes of inputs and results alive at once, in file order."""


def figures(graph: Graph) -> Figures:
    """Return the figures of a graph and of all graphs inside of it."""
    graphs = graph.reachable()
    operators: list[Operator] = []
    computed: list[Value] = []
    constants: dict[Value, None] = {}
    for body in graphs:
        operators += body.operators
        constants.update(dict.fromkeys(body.constants()))
        computed += body.inputs
        for operator in body.operators:
            computed += operator.outputs
    names = Counter(operator.name for operator in operators)
    numbers = [value for value in constants if value.dtype is not DType.SHAPE]
    return Figures(
        operators=dict(names.most_common()),
        constants=len(constants),
        parameters=sum(math.prod(value.shape) for value in numbers),
        multiply_accumulates=sum(map(multiply_accumulates, operators)),
        constant_bytes=_bytes_by_type(constants),
        computed_bytes=_bytes_by_type(computed),
        largest_live_bytes=_largest_live_bytes_of_program(graphs),
    )


def _bytes(value: Value) -> int:
    """Return the bytes of a value; the least if its size is known at run time only."""
    least, _ = range_of(size_in_file(value.type))
    return least


def _bytes_by_type(values: Iterable[Value]) -> dict[str, int]:
    """Return the bytes of values by element type, the most first."""
    counted: Counter[str] = Counter()
    for value in values:
        counted[str(value.dtype)] += _bytes(value)
    return dict(counted.most_common())


def multiply_accumulates(operator: Operator) -> int:
    """Return the number of products that are added up, including those with padding.

    0 for all but convolutions and matrix products.
    """
    products_of_element = _PRODUCTS.get(type(operator))
    if products_of_element is None:
        return 0
    # each element of the input of a transposed convolution goes into several results
    counted = operator.outputs[0]
    if isinstance(operator, ops.TRANSPOSE_CONV2D):
        counted = operator.inputs[0]
    elements = math.prod(counted.shape)
    least, _ = range_of(elements * products_of_element(operator))
    return least


def _of_convolution(operator: Operator) -> int:
    """Return the elements of the kernel and the input channels, for [O,*K,I]."""
    weight = operator.inputs[1]
    return math.prod(weight.shape[1:])


def _of_block_scaled_convolution(operator: Operator) -> int:
    """As ``_of_convolution``; the weight comes after the scale of the input."""
    weight = operator.inputs[2]
    return math.prod(weight.shape[1:])


def _of_depthwise_convolution(operator: Operator) -> int:
    """Return the elements of the kernel, for [KH,KW,C,M]."""
    weight = operator.inputs[1]
    return math.prod(weight.shape[:2])


def _of_transposed_convolution(operator: Operator) -> int:
    """Return the elements of the kernel and the output channels, for [O,KH,KW,I]."""
    weight = operator.inputs[1]
    return math.prod(weight.shape[:3])


def _of_matrix_product(operator: Operator) -> int:
    """Return the columns of the left matrix."""
    left = operator.inputs[0]
    return left.shape[2]


_PRODUCTS: dict[type[Operator], Callable[[Operator], int]] = {
    ops.CONV2D: _of_convolution,
    ops.CONV3D: _of_convolution,
    ops.CONV2D_BLOCK_SCALED: _of_block_scaled_convolution,
    ops.DEPTHWISE_CONV2D: _of_depthwise_convolution,
    ops.TRANSPOSE_CONV2D: _of_transposed_convolution,
    ops.MATMUL: _of_matrix_product,
    ops.MATMUL_T: _of_matrix_product,
    ops.MATMUL_T_BLOCK_SCALED: _of_matrix_product,
}
"""Maps an operator to a function for the number of products per element of its result.

For TRANSPOSE_CONV2D, it is the number per element of its input.
"""


def _largest_live_bytes_of_program(graphs: list[Graph]) -> int:
    """Return the largest live memory of the first graph, the program.

    The memory of a body is added where it is called.
    """
    needed: dict[Graph, int] = {}
    for graph in reversed(graphs):
        needed[graph] = largest_live_bytes(graph, needed)
    return needed[graphs[0]]


def largest_live_bytes(graph: Graph, of_bodies: dict[Graph, int]) -> int:
    """Return the largest live memory of inputs and results at an operator.

    ``of_bodies`` is that of graphs of control flow, which is added to the operator that
    runs them.
    """
    live = sum(_bytes(value) for value in dict.fromkeys(graph.inputs))
    largest = live
    for operator, dead in zip(graph.operators, last_uses(graph), strict=True):
        live += sum(map(_bytes, operator.outputs))
        attributes = operator.attribute_values().values()
        bodies = [value for value in attributes if isinstance(value, Graph)]
        inside = max([of_bodies[body] for body in bodies], default=0)
        largest = max(largest, live + inside)
        live -= sum(map(_bytes, dead))
    return largest
