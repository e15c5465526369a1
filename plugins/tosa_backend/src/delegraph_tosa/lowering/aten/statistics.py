"""Variance, standard deviation and norms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...ir.dynamic_sizes import waits
from ...ir.graph import Value
from ...ir.types import FLOATS, DType
from ..builder import Operand, Tosa
from ..promotion import converted
from ..registry import lowers
from .cast import to_torch
from .elementwise import sqrt
from .reduce import axes_of, reduced, without_axes

aten = torch.ops.aten
inf = math.inf
Dims = Sequence[int] | None
SMALLEST = 2.0**-100
"""Smallest divisor of deviations; 1 / subnormal may be infinite."""


def moments(
    t: Tosa, x: Value, dims: Dims, correction: float, root: bool
) -> tuple[Value, Value]:
    """Return (variance, mean) of x over ``dims``, or with ``root`` (deviation, mean).

    The axes stay, with size 1. The mean is the sum of x / N. The variance is the sum of
    (deviation / sqrt(divisor))^2. So a sum overflows only if the result does. For the
    standard deviation, elements are divided by 4 first, because the difference from the
    mean could overflow. Deviations are then divided by the largest one, as their
    squares could.
    """
    t.refuse_unless(x.dtype in FLOATS, f"a variance of {x.dtype} is not defined")
    wide = converted(t, x, DType.FP32)
    axes = axes_of(dims, x.rank)
    count = math.prod([x.shape[axis] for axis in axes])
    divisor = max(count - correction, 0)
    # sum(d^2) / divisor is computed as sum((d * weight)^2)
    weight = _reciprocal_root(t, divisor, wide)
    if not root:
        mean = _mean(t, wide, count, axes)
        weighted = t.mul(t.sub(wide, mean), weight)
        return _sum_of_squares(t, weighted, axes), mean
    quarter = t.mul(wide, 0.25)
    quarter_mean = _mean(t, quarter, count, axes)
    centred = t.sub(quarter, quarter_mean)
    largest = reduced(t, t.abs(centred), t.reduce_max, axes, keepdim=True)
    # the largest deviation, but not below SMALLEST; 1 where it is infinite or NaN
    is_finite = t.greater(inf, largest)
    unit = t.select(is_finite, t.maximum(largest, SMALLEST), 1.0)
    weighted = t.mul(t.mul(centred, t.reciprocal(unit)), weight)
    deviation_in_units = sqrt(t, _sum_of_squares(t, weighted, axes))
    deviation = t.mul(t.mul(deviation_in_units, unit), 4)
    return deviation, t.mul(quarter_mean, 4)


def _mean(t: Tosa, x: Value, count: int, axes: Sequence[int]) -> Value:
    """Return the mean of ``count`` elements over ``axes``, which stay with size 1.

    Elements are divided before they are added, so that the sum does not overflow.
    """
    return reduced(t, t.mul(x, 1 / count), t.reduce_sum, axes, keepdim=True)


def _sum_of_squares(t: Tosa, x: Value, axes: Sequence[int]) -> Value:
    """Return the sum of the squares of x over ``axes``, which stay with size 1."""
    return reduced(t, t.mul(x, x), t.reduce_sum, axes, keepdim=True)


def _reciprocal_root(t: Tosa, divisor: float, x: Value) -> Operand:
    """1 / sqrt(divisor), infinite for 0.

    A Python number, or a value of the type of x if ``divisor`` is known at run time
    only.
    """
    if waits(divisor):
        return t.rsqrt(t.like(divisor, x))
    return math.sqrt(1 / divisor) if divisor else inf


def _as_torch_returns(t: Tosa, x: Value, y: Value, dims: Dims, keepdim: bool) -> Value:
    """Cast y, a statistic of x over ``dims``, to the dtype of x.

    Without ``keepdim``, remove the axes of size 1.
    """
    y = converted(t, y, x.dtype)
    return y if keepdim else without_axes(t, y, axes_of(dims, x.rank))


def _spread_and_mean(
    t: Tosa,
    x: Value,
    dims: Dims,
    correction: float | None,
    unbiased: bool,
    keepdim: bool,
    root: bool,
) -> tuple[Value, Value]:
    """Return variance or, with ``root``, deviation, and mean, as torch returns them.

    A ``correction`` of None is 1 if ``unbiased``, else 0.
    """
    if correction is None:
        correction = int(unbiased)
    spread, mean = moments(t, x, dims, correction, root)
    spread = _as_torch_returns(t, x, spread, dims, keepdim)
    return spread, _as_torch_returns(t, x, mean, dims, keepdim)


@lowers(aten.var.correction, aten.var.default, aten.var.dim)
def var(
    t: Tosa,
    self: Value,
    dim: Dims = None,
    correction: float | None = None,
    unbiased: bool = True,
    keepdim: bool = False,
) -> Value:
    """[*S] -> [*S']; the sum of squares divided by N - correction"""
    return _spread_and_mean(t, self, dim, correction, unbiased, keepdim, root=False)[0]


@lowers(aten.std.correction, aten.std.default, aten.std.dim)
def std(
    t: Tosa,
    self: Value,
    dim: Dims = None,
    correction: float | None = None,
    unbiased: bool = True,
    keepdim: bool = False,
) -> Value:
    """[*S] -> [*S']; the root of the variance"""
    return _spread_and_mean(t, self, dim, correction, unbiased, keepdim, root=True)[0]


@lowers(aten.var_mean.correction, aten.var_mean.default, aten.var_mean.dim)
def var_mean(
    t: Tosa,
    self: Value,
    dim: Dims = None,
    correction: float | None = None,
    unbiased: bool = True,
    keepdim: bool = False,
) -> tuple[Value, Value]:
    """[*S] -> [*S'], [*S']; the variance and the mean"""
    return _spread_and_mean(t, self, dim, correction, unbiased, keepdim, root=False)


@lowers(aten.std_mean.correction, aten.std_mean.default, aten.std_mean.dim)
def std_mean(
    t: Tosa,
    self: Value,
    dim: Dims = None,
    correction: float | None = None,
    unbiased: bool = True,
    keepdim: bool = False,
) -> tuple[Value, Value]:
    """[*S] -> [*S'], [*S']; the standard deviation and the mean"""
    return _spread_and_mean(t, self, dim, correction, unbiased, keepdim, root=True)


@lowers(aten.linalg_vector_norm.default)
def linalg_vector_norm(
    t: Tosa,
    self: Value,
    ord: float,
    dim: Dims,
    keepdim: bool,
    dtype: torch.dtype | None,
) -> Value:
    """[*S] -> [*S']; of order 1, 2 or infinity, computed in fp32"""
    t.refuse_unless(ord in (1, 2, inf), f"a norm of order {ord} has no rule of its own")
    x = to_torch(t, self, dtype)
    t.refuse_unless(x.dtype in FLOATS, f"a norm of {x.dtype} is not defined")
    wide = converted(t, x, DType.FP32)
    axes = axes_of(dim, x.rank)
    if ord == 2:
        norm = sqrt(t, _sum_of_squares(t, wide, axes))
    else:
        step = t.reduce_sum if ord == 1 else t.reduce_max
        norm = reduced(t, t.abs(wide), step, axes, keepdim=True)
    return _as_torch_returns(t, x, norm, axes, keepdim)
