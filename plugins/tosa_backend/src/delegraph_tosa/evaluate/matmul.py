"""Matrix products, shared by MATMUL and the convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir import operators as ops
from ..ir.graph import Array
from .kernels import Result, computes

_EXACT: dict[np.dtype[Any], int] = {
    np.dtype(np.float32): 1 << 24,
    np.dtype(np.float64): 1 << 53,
}
"""Integers up to this magnitude are exact in the float type."""


def accumulator(left: Array, right: Array, terms: int) -> np.dtype[Any]:
    """Return the type for a sum of ``terms`` products, in which the sum is exact.

    For integers, this is the narrowest float in which every partial sum is exact,
    because products of floats are fast. If there is none, it is int64. Floats are
    summed in fp32, which is at least as exact as TOSA's accumulators for them.
    """
    if left.dtype.kind == "f":
        return np.dtype(np.float32)
    largest_sum = _largest_difference(left) * _largest_difference(right) * terms
    for dtype, largest_exact in _EXACT.items():
        if largest_sum <= largest_exact:
            return dtype
    return np.dtype(np.int64)


def _largest_difference(x: Array) -> int:
    """Return the largest abs(element - zero point) of the integer type of ``x``."""
    limits = np.iinfo(x.dtype)
    return int(limits.max) - int(limits.min)


def centred(x: Array, zero_point: Array, dtype: npt.DTypeLike) -> Array:
    """Return ``x - zero_point`` in a type that does not overflow."""
    wide: Array = x.astype(dtype, copy=False)
    zero = zero_point.item()
    if zero == 0:
        return wide
    difference: Array = wide - wide.dtype.type(zero)
    return difference


@computes(ops.MATMUL)
def matmul(op: ops.MATMUL, a: Array, b: Array, a_zp: Array, b_zp: Array) -> Result:
    """Multiply [N,H,C] by [N,C,W]."""
    return _product(a, b, a_zp, b_zp)


@computes(ops.MATMUL_T)
def matmul_t(op: ops.MATMUL_T, a: Array, b: Array, a_zp: Array, b_zp: Array) -> Result:
    """Multiply [N,H,C] by [N or 1,W,C], transposed."""
    return _product(a, b.swapaxes(1, 2), a_zp, b_zp)


def _product(a: Array, b: Array, a_zp: Array, b_zp: Array) -> Result:
    """Return the product [N,H,W] of [N,H,C] and [N,C,W] minus their zero points."""
    dtype = accumulator(a, b, a.shape[2])
    left = centred(a, a_zp, dtype)
    right = centred(b, b_zp, dtype)
    sums = np.matmul(left, right)
    if a.dtype.kind == "i":
        return sums.astype(np.int64)
    return sums
