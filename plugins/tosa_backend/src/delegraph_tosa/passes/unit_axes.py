"""Drops a last axis of size 1, which NPUs compute in a sixteenth of their width."""

from __future__ import annotations

import math

from ..ir import operators as tosa
from ..ir.dynamic_sizes import range_of
from ..ir.graph import Graph, Operator, shape_of
from ..ir.types import Type
from ..spec import TosaSpec
from .rewriter import Rewrite, rebuilt

LEAST_RANK = 4
LEAST_ELEMENTS = 128
"""Below, a pass costs less than the copy that a RESHAPE may take."""
DATA: dict[type[Operator], int] = {
    **dict.fromkeys((tosa.ABS, tosa.CAST, tosa.CLAMP, tosa.CLZ, tosa.RESCALE, tosa.TABLE), 1),
    **dict.fromkeys(
        (
            tosa.ADD, tosa.ARITHMETIC_RIGHT_SHIFT, tosa.LOGICAL_LEFT_SHIFT, tosa.MAXIMUM, tosa.MINIMUM, tosa.MUL,
            tosa.SUB,
        ),
        2,
    ),
}  # fmt: skip
"""Element-wise operator -> how many of its operands have the shape of the result.

The others are parameters.
"""


def drop_unit_axes(graph: Graph, spec: TosaSpec) -> Graph:
    """Compute without the last axis, if it has size 1 in all operands and the result.

    before: ADD [1,256,4,1], [1,256,4,1] - TABLE - CONCAT of axis 2
    after:  RESHAPE [1,256,4] - ADD - TABLE - CONCAT of axis 2 - RESHAPE [1,256,8,1]

    The last axis lies across the lanes of an Ethos-U: TABLE of 1,024 elements takes
    8,816 cycles with one of size 1, CONCAT of 2,304 elements 20,930, and 4,924 without
    it.
    """
    rewrite = Rewrite()
    for operator in graph.operators:
        rewrite.put(operator, _without_unit_axis(rewrite.renewed(operator), rewrite))
    return rewrite.graph(graph)


def _without_unit_axis(operator: Operator, rewrite: Rewrite) -> Operator:
    """Return ``operator`` computed without its last axis, or itself."""
    count = _operands(operator)
    data = operator.inputs[:count]
    others = operator.inputs[count:]
    if not data or not all(
        len(v.shape) >= LEAST_RANK and v.shape[-1] == 1
        for v in (*data, *operator.outputs)
    ):
        return operator
    result = operator.outputs[0]
    # one number for each row, such as the sums of a layer norm, is fast already
    if range_of(math.prod(result.shape))[0] < LEAST_ELEMENTS or set(
        result.shape[:-2]
    ) == {1}:
        return operator
    if isinstance(operator, tosa.SLICE):
        others = tuple([rewrite.shape(shape_of(v)[:-1]) for v in others])
    inputs = [rewrite.reshape(v, v.shape[:-1], operator.source) for v in data]
    narrow = rebuilt(
        operator, (*inputs, *others), [Type(result.shape[:-1], result.dtype)]
    )
    rewrite.operators.append(narrow)
    widened = Rewrite()
    value = widened.reshape(narrow.outputs[0], result.shape, operator.source)
    value.name = result.name
    return widened.operators[-1]


def _operands(operator: Operator) -> int:
    """Return how many operands have the axes of the result.

    0 for an operator that needs its last axis.
    """
    if isinstance(operator, tosa.CONCAT):
        return (
            0 if operator.axis == operator.outputs[0].rank - 1 else len(operator.inputs)
        )
    return 1 if isinstance(operator, tosa.SLICE) else DATA.get(type(operator), 0)
