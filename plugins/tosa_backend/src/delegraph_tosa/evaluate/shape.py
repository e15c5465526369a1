"""Kernels of shape operators (1.1 draft): type inference knows their results."""

from __future__ import annotations

import numpy as np

from ..ir import operators as ops
from ..ir.graph import Array
from ..ir.operators.shape import ShapeOperator
from .kernels import Result, computes


@computes(*(kind for kind in ops.OPERATORS.values() if issubclass(kind, ShapeOperator)))
def shape_operator(op: ShapeOperator, *operands: Array) -> Result:
    return np.array(op.entries if op.entries is not None else op.compute(), np.int64)


@computes(ops.ASSERT_EQUAL_SHAPE)
def assert_equal_shape(op: ops.ASSERT_EQUAL_SHAPE, *operands: Array) -> Result:
    return ()
