"""Integers for a target without PRO-INT: within 24 bits fp32 holds them exactly, so arithmetic on them can run in fp32.

PRO-FP can add and multiply int32, use it as an index, and make it of a maximum's place; it cannot move, compare or
select it. An integer that is proven to lie within 24 bits (token ids, positions, counts) is cast to fp32 once for that,
and back where an index, a sum or a result needs it. A pass later drops casts that nothing needs.
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

A sum is exact if its result is: partial sums lie between zero and the bounds of the whole one.
"""
INDICES = {tosa.GATHER: 1, tosa.SCATTER: 1}
"""Operator -> position of the operand that has to stay an integer, because it is an index."""


def runs_as_floats(operator: Operator) -> bool:
    """Whether fp32 can replace int32 in the operands and results of ``operator`` without changing a number."""
    types = [value.dtype for value in (*operator.inputs, *operator.outputs)]
    if type(operator) not in COMPUTED_AS_FLOATS or (type(operator) is tosa.CAST and DType.BOOL not in types):
        return False
    index = INDICES.get(type(operator))
    values = [value for k, value in enumerate(operator.inputs) if k != index]
    integers = [value for value in (*values, *operator.outputs) if value.dtype is DType.INT32]
    return bool(integers) and all(inside(range_of(value), EXACT) for value in integers)
