"""Integers for a target without PRO-INT: within 24 bits they are exact in fp32, and run as such where they have to.

PRO-FP adds and multiplies int32, reads it as an index and makes it of a maximum's place; it neither moves nor compares
nor selects it. What is proven to lie within 24 bits (token ids, positions, counts) is cast to fp32 for that, once, and
back where an index, a sum or a result needs it; casts that nobody needs are dropped later.
"""

from __future__ import annotations

from ...ir import operators as tosa
from ...ir.graph import Operator
from ...ir.types import DType
from .ranges import Range, inside, range_of

EXACT: Range = (-(2**24), 2**24)
"""The integers between which fp32 has every one."""

COMPUTED_AS_FLOATS: frozenset[type[Operator]] = frozenset(
    {
        *(tosa.RESHAPE, tosa.TRANSPOSE, tosa.SLICE, tosa.TILE, tosa.REVERSE, tosa.CONCAT, tosa.PAD, tosa.GATHER),
        *(tosa.SCATTER, tosa.SELECT, tosa.ABS, tosa.NEGATE, tosa.MAXIMUM, tosa.MINIMUM, tosa.EQUAL, tosa.GREATER),
        *(tosa.GREATER_EQUAL, tosa.REDUCE_MAX, tosa.REDUCE_MIN, tosa.REDUCE_SUM, tosa.CAST),
    }
)
"""Operators that compute the same integers on fp32, as long as each operand and the result is exact there.

Partial sums are exact if the whole one is: they lie between zero and its bounds.
"""
INDICES = {tosa.GATHER: 1, tosa.SCATTER: 1}
"""Which operand stays an integer."""


def runs_as_floats(operator: Operator) -> bool:
    """Whether the int32 that an operator takes and makes can be fp32 instead."""
    types = [value.dtype for value in (*operator.inputs, *operator.outputs)]
    if type(operator) not in COMPUTED_AS_FLOATS or (type(operator) is tosa.CAST and DType.BOOL not in types):
        return False
    index = INDICES.get(type(operator))
    values = [value for k, value in enumerate(operator.inputs) if k != index]
    integers = [value for value in (*values, *operator.outputs) if value.dtype is DType.INT32]
    return bool(integers) and all(inside(range_of(value), EXACT) for value in integers)
