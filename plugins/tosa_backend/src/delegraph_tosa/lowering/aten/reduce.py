"""Reductions. TOSA reduces one axis at a time and keeps it with size 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from ...ir.graph import Value
from ...ir.types import FLOATS, SHORT_FLOATS, DType
from ..builder import Tosa
from ..geometry.layout import axis_of
from ..promotion import converted
from ..registry import lowers
from .cast import to_torch
from .elementwise import product
from .shape import slice_axis

aten = torch.ops.aten
Dims = Sequence[int] | int | None
"""Axes to reduce; None is all."""


def reduced(
    t: Tosa, x: Value, step: Callable[[Value, int], Value], dims: Dims, keepdim: bool
) -> Value:
    """x [*S] -> [*S']: ``step(y, axis)`` for each of ``dims``; none means all axes.

    ``step`` keeps its axis with size 1; without ``keepdim`` these axes are removed at
    the end.
    """
    axes = axes_of(dims, x.rank)
    y = x
    for axis in axes:
        y = step(y, axis)
    return y if keepdim else without_axes(t, y, axes)


def without_axes(t: Tosa, x: Value, axes: Sequence[int]) -> Value:
    """Return x without ``axes``, which all have size 1."""
    kept = [size for axis, size in enumerate(x.shape) if axis not in axes]
    return t.reshape(x, kept)


def axes_of(dims: Dims, rank: int) -> list[int]:
    """Return ``dims`` as axes counted from 0, in order.

    Every axis if it is empty or None.
    """
    if isinstance(dims, int):
        dims = [dims]
    if not dims or rank == 0:
        return list(range(rank))
    return sorted({axis_of(dim, rank) for dim in dims})


def total(
    t: Tosa, x: Value, dims: Dims, keepdim: bool, dtype: torch.dtype | None
) -> Value:
    """Return the sum over ``dims`` as ``dtype``.

    Short floats in fp32, ints in int64.
    """
    x = summand(t, x, dtype)
    wide = converted(t, x, DType.FP32) if x.dtype in SHORT_FLOATS else x
    y = reduced(t, wide, t.reduce_sum, dims, keepdim)
    return converted(t, y, x.dtype)


def summand(t: Tosa, x: Value, dtype: torch.dtype | None) -> Value:
    """Return x in the type of its sum in torch: ``dtype``.

    If that is None, int64 for integers and bools, else x as it is.
    """
    if dtype is not None:
        return to_torch(t, x, dtype)
    return x if x.dtype in FLOATS else converted(t, x, DType.INT64)


def average(t: Tosa, x: Value, dims: Dims, keepdim: bool) -> Value:
    """Return the mean of x over ``dims``, computed in fp32.

    Raises Unsupported unless x has floats.
    """
    t.refuse_unless(x.dtype in FLOATS, f"a mean of {x.dtype} is not defined")
    count = math.prod([x.shape[axis] for axis in axes_of(dims, x.rank)])
    wide = converted(t, x, DType.FP32)
    sums = reduced(t, wide, t.reduce_sum, dims, keepdim)
    return converted(t, t.mul(sums, 1 / count), x.dtype)


@lowers(aten.mean.default, aten.mean.dim)
def mean(
    t: Tosa,
    self: Value,
    dtype: torch.dtype | None,
    dim: Dims = None,
    keepdim: bool = False,
) -> Value:
    """[*S] -> [*S']"""
    return average(t, to_torch(t, self, dtype), dim, keepdim)


@lowers(aten.sum.default, aten.sum.dim_IntList)
def sum(
    t: Tosa,
    self: Value,
    dtype: torch.dtype | None,
    dim: Dims = None,
    keepdim: bool = False,
) -> Value:
    """[*S] -> [*S']"""
    return total(t, self, dim, keepdim, dtype)


@lowers(aten.amax.default, aten.max.default)
def amax(t: Tosa, self: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    """[*S] -> [*S']; NaN if one element is NaN"""
    return reduced(t, self, t.reduce_max, dim, keepdim)


@lowers(aten.amin.default, aten.min.default)
def amin(t: Tosa, self: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    """[*S] -> [*S']; NaN if one element is NaN"""
    return reduced(t, self, t.reduce_min, dim, keepdim)


def _integer_product(t: Tosa, x: Value, axis: int) -> Value:
    """x [*A,N,*B] -> [*A,1,*B], the product along ``axis``.

    REDUCE_PRODUCT takes floats only. So the first half is multiplied by the second half
    until one element is left.
    """
    while x.shape[axis] > 1:
        size = x.shape[axis]
        half = size // 2
        parts = []
        if size % 2:
            # an odd number of elements leaves the last one for the next round
            parts.append(slice_axis(t, x, axis, 2 * half, 1))
        first = slice_axis(t, x, axis, 0, half)
        second = slice_axis(t, x, axis, half, half)
        parts.insert(0, product(t, first, second))
        x = t.concat(parts, axis)
    return x


def multiplied(
    t: Tosa, x: Value, dims: Dims, keepdim: bool, dtype: torch.dtype | None
) -> Value:
    """Return the product over ``dims`` as ``dtype``.

    Short floats are multiplied in fp32, integers in int64.
    """
    x = summand(t, x, dtype)
    if x.dtype not in FLOATS:
        step = partial(_integer_product, t)
        return reduced(t, x, step, dims, keepdim)
    wide = converted(t, x, DType.FP32)
    y = reduced(t, wide, t.reduce_product, dims, keepdim)
    return converted(t, y, x.dtype)


@lowers(aten.prod.default, aten.prod.dim_int)
def prod(
    t: Tosa,
    self: Value,
    dtype: torch.dtype | None,
    dim: Dims = None,
    keepdim: bool = False,
) -> Value:
    """[*S] -> [*S']"""
    return multiplied(t, self, dim, keepdim, dtype)


# ---- any and all: a number is true unless it is 0


@lowers(aten.any.default, aten.any.dim, aten.any.dims)
def any(t: Tosa, self: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    """[*S] -> [*S']; bool; unlike in other reductions, an empty ``dim`` means no axis,
    not all
    """
    x = converted(t, self, DType.BOOL)
    return x if dim == [] else reduced(t, x, t.reduce_any, dim, keepdim)


@lowers(aten.all.default, aten.all.dim, aten.all.dims)
def all(t: Tosa, self: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    """[*S] -> [*S']; bool; unlike in other reductions, an empty ``dim`` means no axis,
    not all
    """
    x = converted(t, self, DType.BOOL)
    return x if dim == [] else reduced(t, x, t.reduce_all, dim, keepdim)


# ---- softmax: reductions that keep the shape


def shifted(t: Tosa, x: Value, axis: int) -> Value:
    """Return x minus its maximum along ``axis``, so that exponentials are finite."""
    return t.sub(x, t.reduce_max(x, axis))


def softmax_of(t: Tosa, x: Value, dim: int) -> Value:
    """x [*S] -> [*S], the softmax along ``dim``, computed in fp32"""
    wide = converted(t, x, DType.FP32)
    if x.rank == 0:
        # exp(x - x) is 1, and NaN for infinite x
        return converted(t, t.exp(t.sub(wide, wide)), x.dtype)
    axis = axis_of(dim, x.rank)
    exponentials = t.exp(shifted(t, wide, axis))
    factor = t.reciprocal(t.reduce_sum(exponentials, axis))
    return converted(t, t.mul(exponentials, factor), x.dtype)


def log_softmax_of(t: Tosa, x: Value, dim: int) -> Value:
    """x [*S] -> [*S], the logarithm of the softmax along ``dim``, computed in fp32"""
    wide = converted(t, x, DType.FP32)
    if x.rank == 0:
        # log(exp(x - x)) is 0, and NaN for infinite x
        return converted(t, t.sub(wide, wide), x.dtype)
    axis = axis_of(dim, x.rank)
    exponents = shifted(t, wide, axis)
    log_of_sum = t.log(t.reduce_sum(t.exp(exponents), axis))
    return converted(t, t.sub(exponents, log_of_sum), x.dtype)


@lowers(aten.logsumexp.default)
def logsumexp(t: Tosa, self: Value, dim: Sequence[int], keepdim: bool) -> Value:
    """[*S] -> [*S']; log(sum(exp(x))), computed in fp32"""
    t.refuse_unless(
        bool(dim) or self.rank == 0,
        "torch cannot compute it over no dimensions: name them",
    )
    dtype = self.dtype if self.dtype in FLOATS else DType.FP32
    x = converted(t, self, DType.FP32)
    largest = reduced(t, x, t.reduce_max, dim, keepdim=True)
    # subtracting the largest element keeps exp from overflowing; an infinite one would
    # give inf - inf, NaN
    is_infinite = t.equal(t.abs(largest), math.inf)
    offset = t.select(is_infinite, t.like(0.0, x), largest)
    exponentials = t.exp(t.sub(x, offset))
    sums = reduced(t, exponentials, t.reduce_sum, dim, keepdim=True)
    y = t.add(t.log(sums), offset)
    if not keepdim:
        y = without_axes(t, y, axes_of(dim, x.rank))
    return converted(t, y, dtype)


@lowers(aten.softmax.int, aten._softmax.default)
def softmax(
    t: Tosa,
    self: Value,
    dim: int,
    dtype: torch.dtype | None = None,
    half_to_float: bool = False,
) -> Value:
    """[*S] -> [*S]"""
    if half_to_float:
        dtype = torch.float32
    return softmax_of(t, to_torch(t, self, dtype), dim)


@lowers(aten.log_softmax.int, aten._log_softmax.default)
def log_softmax(
    t: Tosa,
    self: Value,
    dim: int,
    dtype: torch.dtype | None = None,
    half_to_float: bool = False,
) -> Value:
    """[*S] -> [*S]"""
    if half_to_float:
        dtype = torch.float32
    return log_softmax_of(t, to_torch(t, self, dtype), dim)
