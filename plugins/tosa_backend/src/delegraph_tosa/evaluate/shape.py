"""Kernels of shape operators (1.1 draft). Type inference computes their results."""

from __future__ import annotations

import numpy as np

from ..ir import operators as ops
from ..ir.graph import Array
from ..ir.operators.shape import ShapeOperator
from .kernels import Result, computes

SHAPE_OPERATORS = [
    kind for kind in ops.OPERATORS.values() if issubclass(kind, ShapeOperator)
]


@computes(*SHAPE_OPERATORS)
def shape_operator(op: ShapeOperator, *operands: Array) -> Result:
    """Return the entries that ``infer`` has computed, or compute them."""
    entries = op.entries
    if entries is None:
        entries = op.compute()
    return np.array(entries, np.int64)


@computes(ops.ASSERT_EQUAL_SHAPE)
def assert_equal_shape(op: ops.ASSERT_EQUAL_SHAPE, *operands: Array) -> Result:
    return ()
