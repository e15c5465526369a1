"""Slices slices and CONCATs from their operands directly."""

from __future__ import annotations

from itertools import accumulate, pairwise

from ..ir.graph import Graph, Operator, Value, shape_of
from ..ir.operators import CONCAT, SLICE
from ..spec import TosaSpec
from .rewriter import Rewrite, merge_sources, origin, replaced
from .view_axes import Shape


def join_slices(graph: Graph, spec: TosaSpec) -> Graph:
    """Slice a slice from the whole, and a part of a CONCAT from one operand.

    before: SLICE [25,192] - SLICE [1,192] - SLICE [1,64]        CONCAT (x, y) - SLICE of y
    after:  SLICE [25,192] - SLICE [1,64]                        y

    Vela reads a slice of a tensor where the tensor is, but copies a slice that is
    sliced again: of a GRU that is each step's part of the first product, all of them
    before the first step. If only the last state of a recurrent network is used, only
    this is kept.
    """
    rewrite = Rewrite()
    for old in graph.operators:
        operator = rewrite.renewed(old)
        if isinstance(operator, SLICE):
            operator = _from_origin(operator, rewrite)
            if operator.inputs[0].shape == operator.outputs[0].shape:
                rewrite.forward(old.outputs[0], operator.inputs[0])
                continue
        rewrite.put(old, operator)
    return rewrite.graph(graph)


def _from_origin(operator: Operator, rewrite: Rewrite) -> Operator:
    """Return an equal SLICE that reads no SLICE, and no CONCAT if possible."""
    while True:
        x, start, size = operator.inputs
        before = origin(x)
        if isinstance(before, SLICE):
            begin = tuple(
                [
                    a + b
                    for a, b in zip(
                        shape_of(before.inputs[1]), shape_of(start), strict=True
                    )
                ]
            )
            whole: Value | None = before.inputs[0]
        elif isinstance(before, CONCAT):
            whole, begin = _operand(before, shape_of(start), shape_of(size))
        else:
            return operator
        if whole is None:
            return operator
        operator = replaced(
            operator,
            (whole, rewrite.shape(begin), size),
            merge_sources(before.source, operator.source),
        )


def _operand(joined: CONCAT, start: Shape, size: Shape) -> tuple[Value | None, Shape]:
    """Return the operand that a slice of a CONCAT lies in, and where it begins there.

    None if it takes of several.
    """
    axis = joined.axis
    ends = accumulate((v.shape[axis] for v in joined.inputs), initial=0)
    for value, (low, high) in zip(joined.inputs, pairwise(ends), strict=True):
        if low <= start[axis] and start[axis] + size[axis] <= high:
            return value, (*start[:axis], start[axis] - low, *start[axis + 1 :])
    return None, start
