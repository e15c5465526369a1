"""Operators about signs, infinities and NaN."""

from __future__ import annotations

import math

import torch

from ...ir.graph import Value
from ...ir.types import FLOATS, DType, NanMode
from ..builder import Operand, Tosa
from ..promotion import promoted
from ..registry import lowers
from ..torch_values.tensor_types import finfo
from .create import filled

aten = torch.ops.aten
inf = math.inf


def is_negative(t: Tosa, x: Value) -> Value:
    """x [*S] -> bool [*S]: true for negative numbers and -0.0, false for NaN."""
    if x.dtype is DType.BOOL:
        return filled(t, x.shape, False, torch.bool)
    below_zero = t.greater(0, x)
    if x.dtype not in FLOATS:
        return below_zero
    # the reciprocal of -0.0 is -inf
    is_zero = t.equal(x, 0)
    reciprocal_is_negative = t.greater(0.0, t.reciprocal(x))
    is_negative_zero = t.logical_and(is_zero, reciprocal_is_negative)
    return t.logical_or(below_zero, is_negative_zero)


@lowers(aten.sign.default, aten.sgn.default)
def sign(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; -1, 0 or 1. NaN gives 0, as in torch"""
    if self.dtype is DType.BOOL:
        return self
    negative = t.select(t.greater(0, self), t.like(-1, self), 0)
    return t.select(t.greater(self, 0), 1, negative)


@lowers(aten.signbit.default)
def signbit(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; bool; false for NaN: no TOSA operator shows its sign"""
    return is_negative(t, self)


@lowers(aten.copysign.Tensor, aten.copysign.Scalar)
def copysign(t: Tosa, self: Value, other: Operand) -> Value:
    """[*S], [*S] -> [*S]; the magnitude of self with the sign of ``other`` (see
    ``signbit``)
    """
    if isinstance(other, Value):
        left, right = promoted(t, self, other)
        negative = is_negative(t, right)  # type: ignore[arg-type]
    else:
        left, _ = promoted(t, self, 1.0)
        number_is_negative = math.copysign(1, other) < 0
        negative = t.constant(number_is_negative, DType.BOOL, (1,) * self.rank)
    # the number 1.0 promotes integers to floats
    x: Value = promoted(t, left, 1.0)[0]  # type: ignore[assignment]
    magnitude = t.abs(x)
    return t.select(negative, t.negate(magnitude), magnitude)


@lowers(aten.heaviside.default)
def heaviside(t: Tosa, self: Value, values: Value) -> Value:
    """[*S], [*S] -> [*S]; 1 above 0, 0 below, and ``values`` at 0"""
    step = t.select(t.greater(self, 0), t.like(1, self), 0)
    return t.select(t.equal(self, 0), values, step)


@lowers(aten.isnan.default)
def isnan(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; bool"""
    if self.dtype not in FLOATS:
        return filled(t, self.shape, False, torch.bool)
    return t.logical_not(t.equal(self, self))


@lowers(aten.isinf.default)
def isinf(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; bool"""
    if self.dtype not in FLOATS:
        return filled(t, self.shape, False, torch.bool)
    return t.equal(t.abs(self), inf)


@lowers(aten.isfinite.default)
def isfinite(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; bool"""
    if self.dtype not in FLOATS:
        return filled(t, self.shape, True, torch.bool)
    return t.greater(inf, t.abs(self))


@lowers(aten.isposinf.default)
def isposinf(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; bool"""
    if self.dtype not in FLOATS:
        return filled(t, self.shape, False, torch.bool)
    return t.equal(self, inf)


@lowers(aten.isneginf.default)
def isneginf(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; bool"""
    if self.dtype not in FLOATS:
        return filled(t, self.shape, False, torch.bool)
    return t.equal(self, -inf)


@lowers(aten.nan_to_num.default)
def nan_to_num(
    t: Tosa, self: Value, nan: float | None, posinf: float | None, neginf: float | None
) -> Value:
    """[*S] -> [*S]; NaN becomes ``nan``, inf ``posinf``, -inf ``neginf``; None is 0 for
    ``nan``, and the largest finite number of its sign for the others
    """
    if self.dtype not in FLOATS:
        return self
    largest = finfo(self.dtype).max
    if nan is None:
        nan = 0.0
    if posinf is None:
        posinf = largest
    if neginf is None:
        neginf = -largest
    without_nan = t.select(t.equal(self, self), self, nan)
    if posinf == largest and neginf == -largest:
        return t.clamp(without_nan, neginf, posinf)
    y = t.select(t.equal(self, inf), posinf, without_nan)
    return t.select(t.equal(self, -inf), neginf, y)


@lowers(aten.fmax.default)
def fmax(t: Tosa, self: Value, other: Value) -> Value:
    """[*S], [*S] -> [*S]; NaN only where both elements are NaN"""
    left, right = promoted(t, self, other)
    return t.maximum(left, right, nan_mode=NanMode.IGNORE)


@lowers(aten.fmin.default)
def fmin(t: Tosa, self: Value, other: Value) -> Value:
    """[*S], [*S] -> [*S]; NaN only where both elements are NaN"""
    left, right = promoted(t, self, other)
    return t.minimum(left, right, nan_mode=NanMode.IGNORE)
