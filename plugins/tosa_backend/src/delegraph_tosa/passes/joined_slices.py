"""Makes a SLICE of a SLICE or CONCAT read the operand of that directly."""

from __future__ import annotations

from typing import NamedTuple

from ..ir.graph import Graph, Operator, Value, shape_of
from ..ir.operators import CONCAT, SLICE
from ..spec import TosaSpec
from .rewriter import Rewrite, merge_sources, operator_of, with_operands
from .view_axes import Shape


class Part(NamedTuple):
    """A part of ``whole`` that begins at ``start``."""

    whole: Value
    start: Shape


def join_slices(graph: Graph, spec: TosaSpec) -> Graph:
    """Slice a slice from the whole, and a part of a CONCAT from one operand.

    before: x - SLICE [25,192] - SLICE [1,64]    CONCAT (x, y) - SLICE of all of y
    after:  x - SLICE [1,64]                     y

    Vela reads a slice in place, but copies it if it is sliced again. In a GRU it would
    copy every step's part of the first product before the first step. A SLICE of the
    last state of a recurrent network no longer needs the CONCAT of all states.
    """
    rewrite = Rewrite()
    for old in graph.operators:
        operator = rewrite.with_new_operands(old)
        if isinstance(operator, SLICE):
            operator = _sliced_from_whole(operator, rewrite)
            if operator.inputs[0].shape == operator.outputs[0].shape:
                rewrite.forward(old.outputs[0], operator.inputs[0])
                continue
        rewrite.put(old, operator)
    return rewrite.graph(graph)


def _sliced_from_whole(operator: Operator, rewrite: Rewrite) -> Operator:
    """Return an equal SLICE that reads no SLICE, and no CONCAT if possible."""
    while True:
        x, start, size = operator.inputs
        before = operator_of(x)
        part: Part | None = None
        if isinstance(before, SLICE):
            part = _of_slice(before, shape_of(start))
        elif isinstance(before, CONCAT):
            part = _of_concat(before, shape_of(start), shape_of(size))
        if before is None or part is None:
            return operator
        inputs = (part.whole, rewrite.shape(part.start), size)
        source = merge_sources(before.source, operator.source)
        operator = with_operands(operator, inputs, source)


def _of_slice(before: SLICE, start: Shape) -> Part:
    """Return where a SLICE of ``before`` from ``start`` on begins in its operand."""
    x, start_before, _ = before.inputs
    starts = zip(shape_of(start_before), start, strict=True)
    return Part(x, tuple([first + second for first, second in starts]))


def _of_concat(joined: CONCAT, start: Shape, size: Shape) -> Part | None:
    """Return the part of one operand of ``joined`` that a SLICE of it reads.

    None if the SLICE reads parts of several operands.
    """
    axis = joined.axis
    first = 0
    for value in joined.inputs:
        end = first + value.shape[axis]
        if first <= start[axis] and start[axis] + size[axis] <= end:
            start_in_value = list(start)
            start_in_value[axis] -= first
            return Part(value, tuple(start_in_value))
        first = end
    return None
