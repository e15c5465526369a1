"""Variance, standard deviation and norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

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
from .shape import without_axes

aten = torch.ops.aten
inf = math.inf
Dims = Sequence[int] | None
SMALLEST = 2.0**-100
"""The smallest divisor of differences: 1 / subnormal may be infinite."""


class _Elements(NamedTuple):
    """The elements of a variance: x in fp32 has ``size`` elements along ``axes``."""

    x: Value
    axes: list[int]
    size: int
    weight: Operand
    """1 / sqrt(size - correction)"""


def _elements(t: Tosa, x: Value, dims: Dims, correction: float) -> _Elements:
    """Prepare the variance of x over ``dims``. Raises Unsupported for integers."""
    t.refuse_unless(x.dtype in FLOATS, f"a variance of {x.dtype} is not defined")
    wide = converted(t, x, DType.FP32)
    axes = axes_of(dims, x.rank)
    count = math.prod([x.shape[axis] for axis in axes])
    divisor = max(count - correction, 0)
    return _Elements(wide, axes, count, _reciprocal_root(t, divisor, wide))


def _variance_and_mean(
    t: Tosa, x: Value, dims: Dims, correction: float
) -> tuple[Value, Value]:
    """Return variance and mean of x over ``dims`` in fp32; these axes get size 1.

    The variance sum(d^2) / divisor, for differences d from the mean, is computed as
    sum((d / sqrt(divisor))^2). So the sum overflows only if the variance does.
    """
    elements = _elements(t, x, dims, correction)
    mean = _mean(t, elements.x, elements)
    difference = t.sub(elements.x, mean)
    weighted = t.mul(difference, elements.weight)
    return _sum_of_squares(t, weighted, elements.axes), mean


def _deviation_and_mean(
    t: Tosa, x: Value, dims: Dims, correction: float
) -> tuple[Value, Value]:
    """Return standard deviation and mean of x over ``dims`` in fp32.

    These axes get size 1. Elements are divided by 4 first, because a difference from
    the mean may overflow. The differences are divided by the largest one, because their
    squares may overflow.
    """
    elements = _elements(t, x, dims, correction)
    quarter = t.mul(elements.x, 0.25)
    quarter_mean = _mean(t, quarter, elements)
    difference = t.sub(quarter, quarter_mean)
    largest = reduced(t, t.abs(difference), t.reduce_max, elements.axes, keepdim=True)
    # the largest difference, but not below SMALLEST; 1 where it is infinite or NaN
    is_finite = t.greater(inf, largest)
    unit = t.select(is_finite, t.maximum(largest, SMALLEST), 1.0)
    in_units = t.mul(difference, t.reciprocal(unit))
    weighted = t.mul(in_units, elements.weight)
    deviation_in_units = sqrt(t, _sum_of_squares(t, weighted, elements.axes))
    quarter_deviation = t.mul(deviation_in_units, unit)
    return t.mul(quarter_deviation, 4), t.mul(quarter_mean, 4)


def _mean(t: Tosa, x: Value, elements: _Elements) -> Value:
    """Return the mean of x over the axes of ``elements``, which stay with size 1.

    Elements are divided before they are added, so that the sum does not overflow.
    """
    shares = t.mul(x, 1 / elements.size)
    return reduced(t, shares, t.reduce_sum, elements.axes, keepdim=True)


def _sum_of_squares(t: Tosa, x: Value, axes: Sequence[int]) -> Value:
    """Return the sum of the squares of x over ``axes``, which stay with size 1."""
    return reduced(t, t.mul(x, x), t.reduce_sum, axes, keepdim=True)


def _reciprocal_root(t: Tosa, divisor: float, x: Value) -> Operand:
    """Return 1 / sqrt(divisor), infinite for 0.

    It is a Python number. If ``divisor`` is known at run time only, it is a value of
    the type of x.
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


def _correction(correction: float | None, unbiased: bool) -> float:
    """Return N - divisor of a variance; overloads without it have ``unbiased``."""
    return int(unbiased) if correction is None else correction


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
    number = _correction(correction, unbiased)
    variance, mean = _variance_and_mean(t, self, dim, number)
    variance = _as_torch_returns(t, self, variance, dim, keepdim)
    return variance, _as_torch_returns(t, self, mean, dim, keepdim)


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
    number = _correction(correction, unbiased)
    deviation, mean = _deviation_and_mean(t, self, dim, number)
    deviation = _as_torch_returns(t, self, deviation, dim, keepdim)
    return deviation, _as_torch_returns(t, self, mean, dim, keepdim)


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
    variance, _ = var_mean(t, self, dim, correction, unbiased, keepdim)
    return variance


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
    deviation, _ = std_mean(t, self, dim, correction, unbiased, keepdim)
    return deviation


@lowers(aten.linalg_vector_norm.default)
def linalg_vector_norm(
    t: Tosa,
    self: Value,
    ord: float,
    dim: Dims,
    keepdim: bool,
    dtype: torch.dtype | None,
) -> Value:
    """[*S] -> [*S']; only the orders 1, 2 and infinity; computed in fp32"""
    t.refuse_unless(ord in (1, 2, inf), f"a norm of order {ord} has no rule of its own")
    x = to_torch(t, self, dtype)
    t.refuse_unless(x.dtype in FLOATS, f"a norm of {x.dtype} is not defined")
    wide = converted(t, x, DType.FP32)
    axes = axes_of(dim, x.rank)
    if ord == 2:
        norm = sqrt(t, _sum_of_squares(t, wide, axes))
    else:
        reduce = t.reduce_sum if ord == 1 else t.reduce_max
        norm = reduced(t, t.abs(wide), reduce, axes, keepdim=True)
    return _as_torch_returns(t, x, norm, axes, keepdim)
