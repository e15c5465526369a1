"""Rules that replace those of torch.onnx, which lose digits or signs, or are missing.

A rule is a function that takes the operands and literals of a call, as those of
torch.onnx do. It writes operators of ONNX, and returns the result. The docstring of a
rule is the formula that it writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset20

aten = torch.ops.aten
op: Any = opset20


def log1p(self: Any) -> Any:
    """log(1 + x), exact where 1 + x has lost digits of x (Kahan's formula).

    With y = 1 + x, rounded: log(y) * x / (y - 1).
    """
    one = op.CastLike(1.0, self)
    shifted = op.Add(self, one)
    step = op.Sub(shifted, one)
    # if x adds nothing to 1, or the sum is infinite, the quotient is NaN
    is_plain = op.Or(op.Equal(step, op.CastLike(0.0, self)), op.IsInf(shifted))
    divisor = op.Where(is_plain, one, step)
    scaled = op.Mul(op.Log(shifted), op.Div(self, divisor))
    return op.Where(is_plain, self, scaled)


def expm1(self: Any) -> Any:
    """exp(x) - 1, exact where exp(x) has lost digits of x."""
    # tanh has all digits near 0: exp(x) - 1 = tanh(x / 2) * (exp(x) + 1)
    one = op.CastLike(1.0, self)
    raised = op.Exp(self)
    half = op.Tanh(op.Mul(self, op.CastLike(0.5, self)))
    is_small = op.Less(op.Abs(self), one)
    return op.Where(is_small, op.Mul(half, op.Add(raised, one)), op.Sub(raised, one))


def log_sigmoid(self: Any) -> Any:
    """min(x, 0) - log(1 + exp(-|x|)), which does not overflow."""
    zero = op.CastLike(0.0, self)
    return op.Sub(op.Min(self, zero), log1p(op.Exp(op.Neg(op.Abs(self)))))


def logaddexp(self: Any, other: Any) -> Any:
    """max(x, y) + log(1 + exp(-|x - y|)); equal infinities are the sum."""
    largest = op.Max(self, other)
    distance = op.Abs(op.Sub(self, other))
    summed = op.Add(largest, log1p(op.Exp(op.Neg(distance))))
    is_same_infinity = op.And(op.Equal(self, other), op.IsInf(self))
    return op.Where(is_same_infinity, self, summed)


def sign(self: Any) -> Any:
    """-1, 0 or 1; 0 for NaN."""
    if not self.dtype.is_floating_point():
        return op.Sign(self)
    is_number = op.Equal(self, self)
    return op.Where(is_number, op.Sign(self), op.CastLike(0.0, self))


def atan2(self: Any, other: Any) -> Any:
    """The angle of the point (other, self); zeros and infinities keep their signs."""
    y = op.Abs(self)
    x = op.Abs(other)
    # 0 / 0 and inf / inf are NaN
    ratio = op.Div(op.Min(x, y), op.Max(x, y))
    ratio = op.Where(op.Equal(x, y), op.Sign(x), ratio)
    angle = op.Atan(ratio)
    steep = op.Sub(op.CastLike(math.pi / 2, self), angle)
    angle = op.Where(op.Greater(y, x), steep, angle)
    behind = op.Sub(op.CastLike(math.pi, self), angle)
    angle = op.Where(_is_negative(other), behind, angle)
    # Where of ONNX Runtime loses the sign of -0
    side = op.Where(_is_negative(self), -1.0, 1.0)
    return op.Mul(angle, op.CastLike(side, self))


def _is_negative(x: Any) -> Any:
    """Return whether the sign of x is negative; also for -0."""
    zero = op.CastLike(0.0, x)
    return op.Or(op.Less(x, zero), op.Less(op.Reciprocal(x), zero))


def squeeze_dims(self: Any, dim: Sequence[int]) -> Any:
    """Remove the dimensions ``dim`` of size 1."""
    axes = [axis for axis in dim if self.shape and self.shape[axis] == 1]
    return op.Squeeze(self, axes) if axes else op.Identity(self)


def where(condition: Any, self: Any, other: Any) -> Any:
    """Select elements. ONNX Runtime has no such kernel for truth values."""
    if self.dtype is not ir.DataType.BOOL or other.dtype is not ir.DataType.BOOL:
        return op.Where(condition, self, other)
    kept = op.And(condition, self)
    return op.Or(kept, op.And(op.Not(condition), other))


def amax(self: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    """Return the largest elements, of all dimensions if ``dim`` is empty."""
    return op.ReduceMax(self, list(dim) or None, keepdims=keepdim)


def amin(self: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    """Return the smallest elements, of all dimensions if ``dim`` is empty."""
    return op.ReduceMin(self, list(dim) or None, keepdims=keepdim)


RULES: Mapping[Any, Callable[..., Any]] = {
    aten.log1p.default: log1p,
    aten.expm1.default: expm1,
    aten.log_sigmoid.default: log_sigmoid,
    aten.logaddexp.default: logaddexp,
    aten.sign.default: sign,
    aten.atan2.default: atan2,
    aten.squeeze.dims: squeeze_dims,
    aten.where.self: where,
    aten.amax.default: amax,
    aten.amin.default: amin,
}
"""Operator -> the rule for it."""
