"""Slices slices and CONCATs from their operands directly."""

from __future__ import annotations

from typing import NamedTuple

from ..ir.graph import Graph, Operator, Value, shape_of
from ..ir.operators import CONCAT, SLICE
from ..spec import TosaSpec
from .rewriter import Rewrite, merge_sources, origin, replaced
from .view_axes import Shape


class Part(NamedTuple):
    """A part of ``whole`` that begins at ``start``."""

    whole: Value
    start: Shape


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
        part: Part | None = None
        if isinstance(before, SLICE):
            part = _of_slice(before, shape_of(start))
        elif isinstance(before, CONCAT):
            part = _of_concat(before, shape_of(start), shape_of(size))
        if before is None or part is None:
            return operator
        inputs = (part.whole, rewrite.shape(part.start), size)
        source = merge_sources(before.source, operator.source)
        operator = replaced(operator, inputs, source)


def _of_slice(before: SLICE, start: Shape) -> Part:
    """Return the part of the operand of ``before`` that begins at ``start`` in it."""
    x, start_before, _ = before.inputs
    both = zip(shape_of(start_before), start, strict=True)
    return Part(x, tuple([first + second for first, second in both]))


def _of_concat(joined: CONCAT, start: Shape, size: Shape) -> Part | None:
    """Return the part of one operand of a CONCAT; None if it lies in several."""
    axis = joined.axis
    low = 0
    for value in joined.inputs:
        high = low + value.shape[axis]
        if low <= start[axis] and start[axis] + size[axis] <= high:
            start_in_value = list(start)
            start_in_value[axis] -= low
            return Part(value, tuple(start_in_value))
        low = high
    return None
