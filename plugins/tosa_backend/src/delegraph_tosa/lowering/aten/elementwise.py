"""Elementwise arithmetic with one operator of TOSA or a few: exp, add, div and others."""

from __future__ import annotations

import math

import torch

from ...ir.dynamic_sizes import waits
from ...ir.graph import Value
from ...ir.types import FLOATS, DType
from ..builder import Operand, Tosa
from ..promotion import converted, floating, floating_value, promoted
from ..registry import lowers
from ..torch_values.tensor_types import finfo

aten = torch.ops.aten

# ---- one operand; where the result is a float, torch casts integers to fp32


@lowers(aten.abs.default, aten.absolute.default)
def abs(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]"""
    return t.abs(self)


@lowers(aten.neg.default, aten.negative.default)
def neg(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; integers are computed as 0 - x, which wraps around as in torch:
    NEGATE saturates
    """
    if self.dtype in FLOATS:
        return t.negate(self)
    return difference(t, 0, self, alpha=1)


@lowers(aten.exp.default)
def exp(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]"""
    return t.exp(floating_value(t, self))


@lowers(aten.log.default)
def log(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]"""
    return t.log(floating_value(t, self))


@lowers(aten.sqrt.default)
def sqrt(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; 1 / RSQRT(x), also right for 0 and infinity: TOSA has no square
    root
    """
    return t.reciprocal(t.rsqrt(floating_value(t, self)))


@lowers(aten.rsqrt.default)
def rsqrt(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]"""
    return t.rsqrt(floating_value(t, self))


@lowers(aten.reciprocal.default)
def reciprocal(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]"""
    return t.reciprocal(floating_value(t, self))


@lowers(aten.floor.default)
def floor(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]"""
    return t.floor(self) if self.dtype in FLOATS else self


@lowers(aten.ceil.default)
def ceil(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]"""
    return t.ceil(self) if self.dtype in FLOATS else self


@lowers(aten.erf.default)
def erf(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]"""
    return t.erf(floating_value(t, self))


@lowers(aten.sin.default)
def sin(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; radians"""
    return t.sin(floating_value(t, self))


@lowers(aten.cos.default)
def cos(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; radians"""
    return t.cos(floating_value(t, self))


@lowers(aten.square.default)
def square(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]"""
    return product(t, self, self)


# ---- two operands that broadcast


def product(t: Tosa, left: Operand, right: Operand) -> Value:
    """Return left * right in their common type. At least one is a tensor.

    MUL of int8 or int16 returns int32; the cast back wraps around as torch does.
    """
    left, right = promoted(t, left, right)
    tensor = left if isinstance(left, Value) else right
    dtype = tensor.dtype  # type: ignore[union-attr]
    if dtype not in (DType.INT8, DType.INT16):
        return t.mul(left, right)
    if isinstance(left, Value):
        left = converted(t, left, DType.INT32)
    if isinstance(right, Value):
        right = converted(t, right, DType.INT32)
    wide = t.mul(left, right)
    return converted(t, wide, dtype)


def scaled(t: Tosa, x: Operand, factor: float) -> Operand:
    """Return x * factor, or x itself if the factor is 1."""
    if factor == 1:
        return x
    if isinstance(x, Value):
        return product(t, x, factor)
    return x * factor


def sum_of(t: Tosa, left: Operand, right: Operand, alpha: float) -> Value:
    """Return left + alpha * right. For two bools: left OR (alpha AND right)."""
    if _is_bool(left) and _is_bool(right):
        if not alpha:
            # still an operand: the result has the shape to which both broadcast
            right = t.logical_and(right, False)
        return t.logical_or(left, right)
    left, right = promoted(t, left, right)
    return t.add(left, scaled(t, right, alpha))


def _is_bool(operand: Operand) -> bool:
    """Return whether an operand is a bool: a tensor or a Python number."""
    if isinstance(operand, Value):
        return operand.dtype is DType.BOOL
    return isinstance(operand, bool)


def difference(t: Tosa, left: Operand, right: Operand, alpha: float) -> Value:
    """Return left - alpha * right."""
    left, right = promoted(t, left, right)
    return t.sub(left, scaled(t, right, alpha))


@lowers(aten.add.Tensor, aten.add.Scalar)
def add(t: Tosa, self: Operand, other: Operand, alpha: float) -> Value:
    """[*S], [*S] -> [*S]"""
    return sum_of(t, self, other, alpha)


@lowers(aten.sub.Tensor, aten.sub.Scalar, aten.subtract.Tensor)
def sub(t: Tosa, self: Operand, other: Operand, alpha: float) -> Value:
    """[*S], [*S] -> [*S]"""
    return difference(t, self, other, alpha)


@lowers(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(t: Tosa, self: Operand, other: Operand, alpha: float) -> Value:
    """[*S], [*S] -> [*S]"""
    return difference(t, other, self, alpha)


@lowers(aten.mul.Tensor, aten.mul.Scalar, aten.multiply.Tensor)
def mul(t: Tosa, self: Operand, other: Operand) -> Value:
    """[*S], [*S] -> [*S]"""
    if _is_bool(self) and _is_bool(other):
        return t.logical_and(self, other)
    return product(t, self, other)


@lowers(aten.div.Tensor, aten.div.Scalar, aten.divide.Tensor, aten.true_divide.Tensor)
def div(t: Tosa, self: Operand, other: Operand) -> Value:
    """[*S], [*S] -> [*S]; x * (1 / y), within 1.5 ulp of the quotient: TOSA has no
    division of floats
    """
    left, right = promoted(t, self, other)
    left = floating(t, left)
    right = floating(t, right)
    if not isinstance(right, Value):
        assert isinstance(left, Value)
        return t.mul(left, inverse(t, right, left.dtype))
    if right.constant is not None:
        # the reciprocal is folded to a constant
        return t.mul(left, t.reciprocal(right))
    return quotient_of(t, left, right)


def quotient_of(t: Tosa, x: Operand, y: Value) -> Value:
    """Return x / y as (x * scale) * (1 / (y * scale)).

    Without the scale, 1 / y would overflow for a tiny y, and be subnormal for a huge y.
    The scale is a power of two, so that the products are exact: 2^64 for a tiny y,
    2^-64 for a huge y, else 1; short floats have 10 instead of 64.
    """
    power = 2.0 ** (64 if y.dtype is DType.FP32 else 10)
    magnitude = t.abs(y)
    is_small = t.greater(1 / power, magnitude)
    scale_if_small = t.like(power, y)
    is_large = t.greater(magnitude, power)
    scale = t.select(is_large, t.like(1 / power, y), 1.0)
    scale = t.select(is_small, scale_if_small, scale)
    dividend = t.mul(x, scale)
    divisor = t.mul(y, scale)
    return t.mul(dividend, t.reciprocal(divisor))


def inverse(t: Tosa, number: float, dtype: DType) -> float:
    """Return 1 / number, the factor that replaces a division by ``number``.

    For 0, it is an infinity of the same sign. Raises Unsupported if the factor is not a
    normal number of ``dtype``: it overflows, or it is subnormal and loses digits.
    """
    if waits(number):
        return 1 / number
    if number == 0:
        return math.copysign(math.inf, number)
    result = 1 / number
    limits = finfo(dtype)
    is_normal = limits.tiny <= math.fabs(result) <= limits.max
    # a division by infinity or NaN multiplies by 0 or NaN
    t.refuse_unless(
        is_normal or not math.isfinite(number),
        f"1 / {number}, by which a division multiplies, is no normal number of {dtype}",
    )
    return result


@lowers(aten.maximum.default, aten.max.other)
def maximum(t: Tosa, self: Value, other: Value) -> Value:
    """[*S], [*S] -> [*S]; NaN if one element is NaN"""
    left, right = promoted(t, self, other)
    return t.maximum(left, right)


@lowers(aten.minimum.default, aten.min.other)
def minimum(t: Tosa, self: Value, other: Value) -> Value:
    """[*S], [*S] -> [*S]; NaN if one element is NaN"""
    left, right = promoted(t, self, other)
    return t.minimum(left, right)
