"""Kernels of block-scaled operators (1.1 draft), and their conversion.

Sums are computed in float64, where the product of any two scales is exact, and rounded
to fp32 once.
"""

from __future__ import annotations

import numpy as np

from ..ir import operators as ops
from ..ir.block_scaled_arrays import paired
from ..ir.graph import Array
from ..ir.types import BLOCK_SCALED, DType, Type
from .convolution import biased, correlate, padded
from .kernels import Result, computes
from .layout import row_gather
from .small_floats import encoded, overflow


def scaled(values: Array, scales: Array) -> Array:
    """Return [*S,C] values times [*S,C/block] scales in float64."""
    blocks = values.reshape(*scales.shape, -1).astype(np.float64)
    products: Array = blocks * scales[..., None]
    return products.reshape(values.shape)


def blocks_of(x: Array, size: int, dtype: DType) -> tuple[Array, Array]:
    """Return numbers [*S,C] as quotients [*S,C] and scales [*S,C/size].

    A scale is the smallest power of two of E8M0 with which no quotient overflows when
    it is rounded to ``dtype``. It is 2**-127 for a block of zeros, and NaN for a block
    with NaN or an infinity. This is ``calc_block_scale`` of the draft since March 2026.
    """
    blocks = x.reshape(*x.shape[:-1], -1, size).astype(np.float64)
    largest = np.abs(blocks).max(axis=-1)
    powers = np.ldexp(1.0, _exponents(largest, dtype))
    scales = np.where(np.isfinite(largest), powers, np.nan)
    quotients = blocks / scales[..., None]
    return quotients.reshape(x.shape), scales


def _exponents(largest: Array, dtype: DType) -> Array:
    """Return the least exponents e for which ``largest / 2**e`` is in range.

    Mantissas and exponents are compared, because a quotient would be rounded.
    """
    finite = np.where(np.isfinite(largest), largest, 0)
    mantissa, exponent = np.frexp(finite)
    limit = overflow(dtype)
    limit_mantissa, limit_exponent = np.frexp(limit.number)
    if limit.is_out_of_range:
        is_above = mantissa >= limit_mantissa
    else:
        is_above = mantissa > limit_mantissa
    exponents: Array = np.clip(exponent - limit_exponent + is_above, -127, 127)
    return np.where(largest == 0, -127, exponents)


def paired_blocks(x: Array, dtype: DType) -> Array:
    """Convert numbers to a block-scaled type, with CAST_TO_BLOCK_SCALED's scales."""
    size, scale_dtype, value_dtype = BLOCK_SCALED[dtype]
    quotients, scales = blocks_of(x, size, value_dtype)
    values = encoded(quotients, value_dtype)
    return paired(values, encoded(scales, scale_dtype), Type(x.shape, dtype))


@computes(ops.CAST_TO_BLOCK_SCALED)
def cast_to_block_scaled(op: ops.CAST_TO_BLOCK_SCALED, x: Array) -> Result:
    return blocks_of(x, op.block_size, op.dtype)


@computes(ops.CAST_FROM_BLOCK_SCALED)
def cast_from_block_scaled(
    op: ops.CAST_FROM_BLOCK_SCALED, values: Array, scales: Array
) -> Result:
    return scaled(values, scales).astype(np.float32)


@computes(ops.MATMUL_T_BLOCK_SCALED)
def matmul_t_block_scaled(
    op: ops.MATMUL_T_BLOCK_SCALED, a: Array, a_scale: Array, b: Array, b_scale: Array
) -> Result:
    """Multiply [N,H,C] by [N or 1,W,C], transposed."""
    left = scaled(a, a_scale)
    right = scaled(b, b_scale)
    return np.matmul(left, right.swapaxes(1, 2))


@computes(ops.CONV2D_BLOCK_SCALED)
def conv2d_block_scaled(op: ops.CONV2D_BLOCK_SCALED, *operands: Array) -> Result:
    """Convolve [N,IH,IW,IC] by a weight [OC,KH,KW,IC] to [N,OH,OW,OC]."""
    x, x_scale, weight, weight_scale, bias, pad, stride, dilation = operands
    image = padded(scaled(x, x_scale), pad.tolist())
    kernel = scaled(weight, weight_scale)
    sums = correlate(image, kernel, stride.tolist(), dilation.tolist())
    return biased(sums, bias)


@computes(ops.RESHAPE_BLOCK_SCALED, as_stored=True)
def reshape_block_scaled(op: ops.RESHAPE_BLOCK_SCALED, *operands: Array) -> Result:
    """Reshape values and, if there are any, their scales."""
    values, *scales, new_shape = operands
    *outer, channels = new_shape.tolist()
    reshaped = [values.reshape(*outer, channels)]
    reshaped += [scale.reshape(*outer, -1) for scale in scales]
    return tuple(reshaped)


@computes(ops.ROW_GATHER_BLOCK_SCALED, as_stored=True)
def row_gather_block_scaled(
    op: ops.ROW_GATHER_BLOCK_SCALED, *operands: Array
) -> Result:
    """Gather rows of values and, if there are any, of their scales."""
    *parts, indices, row_count = operands
    return tuple(row_gather(op, part, indices, row_count) for part in parts)
