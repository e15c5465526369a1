"""Kernels of reductions and ARGMAX (specification: Reduction Operators)."""

from __future__ import annotations

import numpy as np

from ..ir import operators as ops
from ..ir.graph import Array
from ..ir.operators.reduction import Reduction
from ..ir.types import NanMode
from .kernels import Result, computes, extreme_of


@computes(ops.REDUCE_ALL)
def reduce_all(op: ops.REDUCE_ALL, x: Array) -> Result:
    return np.all(x, axis=op.axis, keepdims=True)


@computes(ops.REDUCE_ANY)
def reduce_any(op: ops.REDUCE_ANY, x: Array) -> Result:
    return np.any(x, axis=op.axis, keepdims=True)


@computes(ops.REDUCE_MAX, ops.REDUCE_MIN)
def reduce_extreme(op: Reduction, x: Array) -> Result:
    return extreme_of(op).reduce(x, axis=op.axis, keepdims=True)


@computes(ops.REDUCE_SUM)
def reduce_sum(op: ops.REDUCE_SUM, x: Array) -> Result:
    """Sum in fp64: numpy's order along other axes than the last loses digits."""
    accumulator = np.float64 if x.dtype.kind == "f" else np.int64
    return np.add.reduce(x, axis=op.axis, keepdims=True, dtype=accumulator)


@computes(ops.REDUCE_PRODUCT)
def reduce_product(op: ops.REDUCE_PRODUCT, x: Array) -> Result:
    return np.multiply.reduce(x, axis=op.axis, keepdims=True, dtype=np.float64)


@computes(ops.ARGMAX)
def argmax(op: ops.ARGMAX, x: Array) -> Result:
    """Return the index of the first maximum.

    With PROPAGATE, NaN is the maximum. With IGNORE, it is only if all elements are NaN.
    """
    if op.nan_mode is not NanMode.IGNORE or x.dtype.kind != "f":
        return np.argmax(x, axis=op.axis)
    is_nan = np.isnan(x)
    numbers = np.where(is_nan, -np.inf, x)
    maximum = np.fmax.reduce(x, axis=op.axis, keepdims=True)
    is_maximum = (numbers == maximum) & ~is_nan
    return np.argmax(is_maximum, axis=op.axis)
