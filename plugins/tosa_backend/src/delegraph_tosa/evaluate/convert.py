"""Kernels of CAST and RESCALE (specification: Type Conversion)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir import operators as ops
from ..ir.graph import Array
from ..ir.types import ARRAY_DTYPES, BLOCK_SCALED, INTEGERS, DType, RoundingMode
from .block_scaled import paired_blocks
from .kernels import Result, computes


@computes(ops.CAST)
def cast(op: ops.CAST, x: Array) -> Result:
    """Convert numbers. Floats round to nearest even and saturate; integers wrap.

    Nonzero numbers are true. The specification does not define NaN as an integer. It
    becomes the smallest integer of 32 or 64 bits, and 0 in fewer bits, as in the
    reference model and in PyTorch.
    """
    if op.dtype in BLOCK_SCALED:
        return paired_blocks(x, op.dtype)
    if op.dtype is DType.BOOL:
        return x != 0
    if x.dtype.kind == "f" and op.dtype in INTEGERS:
        return _saturated(x, ARRAY_DTYPES[op.dtype])
    return x


def _saturated(x: Array, dtype: np.dtype[Any]) -> Result:
    """Return floats as integers: the nearest, or the end of the range."""
    limits = np.iinfo(dtype)
    nearest = np.rint(x.astype(np.float64))
    # 2**31 for int32: exact in fp64, where the largest int64 is not
    first_above = -float(limits.min)
    is_inside = (nearest >= limits.min) & (nearest < first_above)
    inside = np.where(is_inside, nearest, 0).astype(dtype)
    end_of_range = np.where(nearest > 0, limits.max, limits.min)
    saturated = np.where(np.abs(nearest) >= first_above, end_of_range, inside)
    integer_of_nan = limits.min if limits.bits >= 32 else 0
    return np.where(np.isnan(nearest), integer_of_nan, saturated).astype(dtype)


@computes(ops.RESCALE)
def rescale(
    op: ops.RESCALE,
    x: Array,
    multiplier: Array,
    shift: Array,
    input_zp: Array,
    output_zp: Array,
) -> Result:
    """Multiply by ``multiplier / 2**shift``, computed in int64.

    Multiplier and shift have one element, or one for each index of the last axis.
    """
    zero_before = _extended(input_zp, op.input_unsigned).item()
    zero_after = _extended(output_zp, op.output_unsigned).item()
    bits = shift.astype(np.int64)
    centred = _extended(x, op.input_unsigned) - zero_before
    product = centred * multiplier.astype(np.int64)
    product = product + _rounding(centred, bits, op.rounding_mode)
    result = (product >> bits) + zero_after
    # a multiplier of shape [1] has made a vector of a scalar
    result = result.reshape(x.shape)
    return _narrowed(result, ARRAY_DTYPES[op.dtype], op.output_unsigned)


def _extended(x: Array, unsigned: bool) -> Result:
    """Return integers as int64. Unsigned ones are stored as bits of a signed type."""
    if unsigned:
        x = x.view(f"u{x.dtype.itemsize}")
    return x.astype(np.int64)


def _rounding(value: Array, shift: Array, mode: RoundingMode) -> Result:
    """Return the number to add before the shift: half of the last bit that is kept.

    DOUBLE_ROUND also adds or subtracts 2**30, away from zero (``apply_scale_32``).
    """
    half = np.left_shift(np.int64(1), shift - 1)
    if mode is not RoundingMode.DOUBLE_ROUND:
        return half
    away = np.where(value >= 0, np.int64(1 << 30), np.int64(-(1 << 30)))
    return half + np.where(shift > 31, away, 0)


def _narrowed(result: Array, dtype: np.dtype[Any], unsigned: bool) -> Result:
    """Return int64 saturated to ``dtype``.

    An unsigned result is kept as the bits of the signed type.
    """
    held = np.dtype(f"u{dtype.itemsize}") if unsigned else dtype
    limits = np.iinfo(held)
    saturated = np.clip(result, limits.min, limits.max).astype(held)
    return saturated.view(dtype)
