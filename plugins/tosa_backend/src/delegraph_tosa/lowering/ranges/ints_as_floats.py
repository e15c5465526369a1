"""Runs integers in fp32 on targets without PRO-INT; fp32 holds 24 bits exactly.

PRO-FP can add and multiply int32, use it as an index, and return it from ARGMAX; it
cannot move, compare or select int32. An integer that is proven to fit into 24 bits
(token ids, positions, counts) is cast to fp32 for such operators, and back to int32
where an index, a sum or a result needs it. A pass later removes unnecessary casts.
"""

from __future__ import annotations

from ...ir import operators as tosa
from ...ir.graph import Operator
from ...ir.types import DType
from .value_ranges import Range, inside, range_of

EXACT: Range = (-(2**24), 2**24)
"""The range of integers that fp32 holds exactly."""

COMPUTED_AS_FLOATS: frozenset[type[Operator]] = frozenset(
    {
        tosa.ABS,
        tosa.CAST,
        tosa.CONCAT,
        tosa.EQUAL,
        tosa.GATHER,
        tosa.GREATER,
        tosa.GREATER_EQUAL,
        tosa.MAXIMUM,
        tosa.MINIMUM,
        tosa.NEGATE,
        tosa.PAD,
        tosa.REDUCE_MAX,
        tosa.REDUCE_MIN,
        tosa.REDUCE_SUM,
        tosa.RESHAPE,
        tosa.REVERSE,
        tosa.SCATTER,
        tosa.SELECT,
        tosa.SLICE,
        tosa.TILE,
        tosa.TRANSPOSE,
    }
)
"""Operators that compute the same integers in fp32, if all are in EXACT.

This holds for REDUCE_SUM too: its partial sums lie between 0 and the bounds of the
result.
"""
INDICES = {tosa.GATHER: 1, tosa.SCATTER: 1}
"""Operator -> position of the index operand, which has to stay int32."""


def runs_as_floats(operator: Operator) -> bool:
    """Return whether ``operator`` computes the same numbers in fp32 as in int32."""
    cls = type(operator)
    if cls not in COMPUTED_AS_FLOATS:
        return False
    values = [*operator.inputs, *operator.outputs]
    # only casts from and to bools are computed in fp32
    if cls is tosa.CAST and all(value.dtype is not DType.BOOL for value in values):
        return False
    if cls in INDICES:
        # indices stay int32, so they need not be in EXACT
        del values[INDICES[cls]]
    integers = [value for value in values if value.dtype is DType.INT32]
    return bool(integers) and all(inside(range_of(v), EXACT) for v in integers)
