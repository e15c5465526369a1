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
from .reduce import axes_of, reduced

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
    t.require(x.dtype in FLOATS, f"a variance of {x.dtype} is not defined")
    wide = converted(t, x, DType.FP32)
    axes = axes_of(dims, x.rank)
    count = math.prod([x.shape[axis] for axis in axes])
    divisor = max(count - correction, 0)
    # sum(d^2) / divisor is computed as sum((d * weight)^2)
    weight = _reciprocal_root(t, divisor, wide)
    if not root:
        mean = reduced(t, t.mul(wide, 1 / count), t.reduce_sum, axes, True)
        return _squares(t, t.mul(t.sub(wide, mean), weight), axes), mean
    quarter = t.mul(wide, 0.25)
    mean = reduced(t, t.mul(quarter, 1 / count), t.reduce_sum, axes, True)
    centred = t.sub(quarter, mean)
    largest = reduced(t, t.abs(centred), t.reduce_max, axes, True)
    # the largest deviation, but not below SMALLEST; 1 where it is infinite or NaN
    unit = t.select(t.greater(inf, largest), t.maximum(largest, SMALLEST), 1.0)
    scaled = t.mul(t.mul(centred, t.reciprocal(unit)), weight)
    return t.mul(t.mul(sqrt(t, _squares(t, scaled, axes)), unit), 4), t.mul(mean, 4)


def _reciprocal_root(t: Tosa, divisor: float, x: Value) -> Operand:
    """1 / sqrt(divisor), infinite for 0.

    A Python number, or a value of the type of x if ``divisor`` is known at run time
    only.
    """
    if waits(divisor):
        return t.rsqrt(t.like(divisor, x))
    return math.sqrt(1 / divisor) if divisor else inf


def _squares(t: Tosa, x: Value, axes: Sequence[int]) -> Value:
    """Return the sum of the squares of x over ``axes``, which stay with size 1."""
    return reduced(t, t.mul(x, x), t.reduce_sum, axes, True)


def _as_torch_returns(t: Tosa, x: Value, y: Value, dims: Dims, keepdim: bool) -> Value:
    """Cast y, a statistic of x over ``dims``, to the dtype of x.

    Without ``keepdim``, remove the axes of size 1.
    """
    axes = axes_of(dims, x.rank)
    y = converted(t, y, x.dtype)
    return (
        y
        if keepdim
        else t.reshape(y, [n for axis, n in enumerate(x.shape) if axis not in axes])
    )


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
    spread, mean = moments(
        t, x, dims, int(unbiased) if correction is None else correction, root
    )
    return _as_torch_returns(t, x, spread, dims, keepdim), _as_torch_returns(
        t, x, mean, dims, keepdim
    )


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
    t.require(ord in (1, 2, inf), f"a norm of order {ord} has no rule of its own")
    x = to_torch(t, self, dtype)
    t.require(x.dtype in FLOATS, f"a norm of {x.dtype} is not defined")
    wide = converted(t, x, DType.FP32)
    axes = axes_of(dim, x.rank)
    if ord == 2:
        return _as_torch_returns(t, x, sqrt(t, _squares(t, wide, axes)), axes, keepdim)
    step = t.reduce_sum if ord == 1 else t.reduce_max
    return _as_torch_returns(
        t, x, reduced(t, t.abs(wide), step, axes, True), axes, keepdim
    )
