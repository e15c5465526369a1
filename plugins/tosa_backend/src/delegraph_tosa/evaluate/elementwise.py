"""Kernels of elementwise operators (specification: Activation to Comparison)."""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial

from ..ir import operators as ops
from ..ir.graph import Array, Operator
from ..ir.types import DType, NanMode
from .kernels import Result, computes, extreme_of

_UFUNCS: dict[type[Operator], np.ufunc] = {
    ops.ABS: np.absolute,
    ops.BITWISE_NOT: np.invert,
    ops.CEIL: np.ceil,
    ops.COS: np.cos,
    ops.EXP: np.exp,
    ops.FLOOR: np.floor,
    ops.LOG: np.log,
    ops.LOGICAL_NOT: np.logical_not,
    ops.SIN: np.sin,
    ops.TANH: np.tanh,
    ops.ADD: np.add,
    ops.BITWISE_AND: np.bitwise_and,
    ops.BITWISE_OR: np.bitwise_or,
    ops.BITWISE_XOR: np.bitwise_xor,
    ops.LOGICAL_AND: np.logical_and,
    ops.LOGICAL_LEFT_SHIFT: np.left_shift,
    ops.LOGICAL_OR: np.logical_or,
    ops.LOGICAL_XOR: np.logical_xor,
    ops.POW: np.power,
    ops.SUB: np.subtract,
    ops.EQUAL: np.equal,
    ops.GREATER: np.greater,
    ops.GREATER_EQUAL: np.greater_equal,
}


@computes(*_UFUNCS)
def ufunc(op: Operator, *operands: Array) -> Result:
    """Apply numpy's function for the operator."""
    return _UFUNCS[type(op)](*operands)


@computes(ops.RECIPROCAL)
def reciprocal(op: ops.RECIPROCAL, x: Array) -> Result:
    return np.true_divide(x.dtype.type(1), x)


@computes(ops.RSQRT)
def rsqrt(op: ops.RSQRT, x: Array) -> Result:
    return np.true_divide(x.dtype.type(1), np.sqrt(x))


@computes(ops.SIGMOID)
def sigmoid(op: ops.SIGMOID, x: Array) -> Result:
    y = np.exp(-x)
    y += y.dtype.type(1)
    return np.true_divide(y.dtype.type(1), y)


_ERF_LIMIT = 4.0
"""erf(4) is 1 - 1.5e-8, which is 1 in fp32."""


@functools.cache
def _erf_quotient() -> Polynomial:
    """Return erf(x) / x as a polynomial in 2 * (x / 4)**2 - 1.

    Its error is below 1e-9 for |x| <= 4. The quotient is an even function of x, which
    needs half as many coefficients.
    """

    def quotient(t: Array) -> Result:
        x = _ERF_LIMIT * np.sqrt((t + 1) / 2)
        return np.array([math.erf(v) / v for v in x])

    series = Chebyshev.interpolate(quotient, 24)
    return series.convert(kind=Polynomial)


@computes(ops.ERF)
def erf(op: ops.ERF, x: Array) -> Result:
    """Evaluate the polynomial of ``_erf_quotient``, because numpy has no erf."""
    limited = np.clip(x, -_ERF_LIMIT, _ERF_LIMIT).astype(np.float64)
    t = limited * limited * (2 / _ERF_LIMIT**2) - 1
    coefficients = _erf_quotient().coef
    sum = np.full_like(t, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        sum *= t
        sum += coefficient
    return limited * sum


@computes(ops.CLAMP)
def clamp(op: ops.CLAMP, x: Array) -> Result:
    """Clamp; with IGNORE, NaN becomes ``min_val`` (specification: apply_clip_s)."""
    low = x.dtype.type(op.min_val)
    high = x.dtype.type(op.max_val)
    if op.nan_mode is NanMode.IGNORE and x.dtype.kind == "f":
        raised = np.fmax(x, low)
        return np.fmin(raised, high)
    return np.clip(x, low, high)


@computes(ops.MAXIMUM, ops.MINIMUM)
def extreme(op: Operator, x: Array, y: Array) -> Result:
    return extreme_of(op)(x, y)


@computes(ops.MUL)
def mul(op: ops.MUL, x: Array, y: Array, shift: Array) -> Result:
    """Multiply; products of int32 keep their low bits, or are shifted with rounding.

    Products of int8 and int16 cannot overflow int32.
    """
    if x.dtype.kind == "f":
        return np.multiply(x, y)
    product = np.multiply(x, y, dtype=np.int64)
    bits = int(shift.item())
    if bits == 0:
        return product
    half = 1 << (bits - 1)
    return (product + half) >> bits


@computes(ops.NEGATE)
def negate(op: ops.NEGATE, x: Array, input_zp: Array, output_zp: Array) -> Result:
    """Negate; integers saturate: -(-128) is 127."""
    if x.dtype.kind == "f":
        return np.negative(x)
    centred = x.astype(np.int64) - int(input_zp.item())
    negated = int(output_zp.item()) - centred
    limits = np.iinfo(x.dtype)
    return np.clip(negated, limits.min, limits.max)


@computes(ops.INTDIV)
def intdiv(op: ops.INTDIV, x: Array, y: Array) -> Result:
    """Divide and truncate towards zero; numpy rounds down."""
    quotient, remainder = np.divmod(x, y)
    is_negative = (x < 0) != (y < 0)
    was_rounded_down = (remainder != 0) & is_negative
    return quotient + was_rounded_down


@computes(ops.ARITHMETIC_RIGHT_SHIFT)
def arithmetic_right_shift(
    op: ops.ARITHMETIC_RIGHT_SHIFT, x: Array, y: Array
) -> Result:
    """Shift; with ``round``, add the last bit that was shifted out."""
    shifted = np.right_shift(x, y)
    if not op.round:
        return shifted
    one = x.dtype.type(1)
    one_bit_less = np.maximum(y, 1) - y.dtype.type(1)
    last_lost_bit = np.right_shift(x, one_bit_less) & one
    return np.where(y > 0, shifted + last_lost_bit, shifted)


@computes(ops.LOGICAL_RIGHT_SHIFT)
def logical_right_shift(op: ops.LOGICAL_RIGHT_SHIFT, x: Array, y: Array) -> Result:
    unsigned = f"u{x.dtype.itemsize}"
    shifted = np.right_shift(x.view(unsigned), y.view(unsigned))
    return shifted.view(x.dtype)


@computes(ops.CLZ)
def clz(op: ops.CLZ, x: Array) -> Result:
    """Return the number of leading zero bits of int32 or int64."""
    if x.dtype.itemsize != 8:
        return _leading_zeros(x)
    upper = _leading_zeros((x >> 32).astype(np.int32))
    lower = _leading_zeros(x.astype(np.int32))
    return np.where(upper == 32, 32 + lower, upper)


def _leading_zeros(x: Array) -> Result:
    """Return the leading zeros of int32, by the exponent in fp64, which is exact."""
    unsigned = x.view(np.uint32)
    _, highest_bit = np.frexp(unsigned.astype(np.float64))
    return 32 - highest_bit


@computes(ops.SELECT)
def select(op: ops.SELECT, condition: Array, x: Array, y: Array) -> Result:
    return np.where(condition, x, y)


@computes(ops.TABLE)
def table(op: ops.TABLE, x: Array, table: Array) -> Result:
    """Look up int8; interpolate for int16.

    The 513 entries for int16 are 128 integers apart. The interpolation adds 7 bits.
    """
    if op.input1.dtype is DType.INT8:
        index = x.astype(np.int16) + 128
        return table[index]
    index = (x.astype(np.int32) + 32768) >> 7
    base = table[index].astype(np.int32)
    following = table[index + 1].astype(np.int32)
    position = x & 127
    return (base << 7) + (following - base) * position
