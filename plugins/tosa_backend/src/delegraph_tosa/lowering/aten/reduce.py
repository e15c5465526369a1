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
from .shape import slice_axis, without_axes

aten = torch.ops.aten
Dims = Sequence[int] | int | None
"""Axes to reduce; None is all."""


def reduced(
    t: Tosa, x: Value, reduce: Callable[[Value, int], Value], dims: Dims, keepdim: bool
) -> Value:
    """x [*S] -> [*S'], reduced by ``reduce(y, axis)`` along each of ``dims`` in turn.

    ``reduce`` keeps its axis with size 1. Without ``keepdim``, these axes are removed
    at the end.
    """
    axes = axes_of(dims, x.rank)
    y = x
    for axis in axes:
        y = reduce(y, axis)
    return y if keepdim else without_axes(t, y, axes)


def axes_of(dims: Dims, rank: int) -> list[int]:
    """Return ``dims`` as axes counted from 0, in order.

    Return every axis if ``dims`` is empty or None.
    """
    if isinstance(dims, int):
        dims = [dims]
    if not dims or rank == 0:
        return list(range(rank))
    return sorted({axis_of(dim, rank) for dim in dims})


def in_result_type(t: Tosa, x: Value, dtype: torch.dtype | None) -> Value:
    """Cast x to the type in which torch returns a sum or product of its elements.

    This is ``dtype``. If ``dtype`` is None, it is int64 for integers and bools, and the
    type of x for floats.
    """
    if dtype is not None:
        return to_torch(t, x, dtype)
    if x.dtype in FLOATS:
        return x
    return converted(t, x, DType.INT64)


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
    """[*S] -> [*S']; short floats are added in fp32, integers in int64"""
    x = in_result_type(t, self, dtype)
    wide = converted(t, x, DType.FP32) if x.dtype in SHORT_FLOATS else x
    y = reduced(t, wide, t.reduce_sum, dim, keepdim)
    return converted(t, y, x.dtype)


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
    until one element is left: [a, b, c, d, e] -> [ac, bd, e] -> [acbd, e] -> ...
    """
    while x.shape[axis] > 1:
        size = x.shape[axis]
        half = size // 2
        first = slice_axis(t, x, axis, 0, half)
        second = slice_axis(t, x, axis, half, half)
        parts = [product(t, first, second)]
        if size % 2:
            # an odd number of elements leaves the last one for the next round
            parts.append(slice_axis(t, x, axis, 2 * half, 1))
        x = t.concat(parts, axis)
    return x


@lowers(aten.prod.default, aten.prod.dim_int)
def prod(
    t: Tosa,
    self: Value,
    dtype: torch.dtype | None,
    dim: Dims = None,
    keepdim: bool = False,
) -> Value:
    """[*S] -> [*S']; short floats are multiplied in fp32, integers in int64"""
    x = in_result_type(t, self, dtype)
    if x.dtype not in FLOATS:
        return reduced(t, x, partial(_integer_product, t), dim, keepdim)
    wide = converted(t, x, DType.FP32)
    y = reduced(t, wide, t.reduce_product, dim, keepdim)
    return converted(t, y, x.dtype)


# ---- any and all: a number is true unless it is 0


@lowers(aten.any.default, aten.any.dim, aten.any.dims)
def any(t: Tosa, self: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    """[*S] -> [*S']; bool; unlike in other reductions, an empty ``dim`` means no axis,
    not all
    """
    x = converted(t, self, DType.BOOL)
    if dim == []:
        return x
    return reduced(t, x, t.reduce_any, dim, keepdim)


@lowers(aten.all.default, aten.all.dim, aten.all.dims)
def all(t: Tosa, self: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    """[*S] -> [*S']; bool; unlike in other reductions, an empty ``dim`` means no axis,
    not all
    """
    x = converted(t, self, DType.BOOL)
    if dim == []:
        return x
    return reduced(t, x, t.reduce_all, dim, keepdim)


# ---- softmax and the logarithm of a sum of exponentials


def _minus_maximum(t: Tosa, x: Value, axis: int) -> Value:
    """Return x minus its maximum along ``axis``, so that exponentials are finite."""
    return t.sub(x, t.reduce_max(x, axis))


def softmax_of(t: Tosa, x: Value, dim: int) -> Value:
    """x [*S] -> [*S], the softmax along ``dim``, computed in fp32"""
    wide = converted(t, x, DType.FP32)
    if x.rank == 0:
        # exp(x - x) is 1, and NaN for infinite x
        return converted(t, t.exp(t.sub(wide, wide)), x.dtype)
    axis = axis_of(dim, x.rank)
    exponentials = t.exp(_minus_maximum(t, wide, axis))
    factor = t.reciprocal(t.reduce_sum(exponentials, axis))
    y = t.mul(exponentials, factor)
    return converted(t, y, x.dtype)


def log_softmax_of(t: Tosa, x: Value, dim: int) -> Value:
    """x [*S] -> [*S], the logarithm of the softmax along ``dim``, computed in fp32"""
    wide = converted(t, x, DType.FP32)
    if x.rank == 0:
        # log(exp(x - x)) is 0, and NaN for infinite x
        return converted(t, t.sub(wide, wide), x.dtype)
    axis = axis_of(dim, x.rank)
    exponents = _minus_maximum(t, wide, axis)
    sums = t.reduce_sum(t.exp(exponents), axis)
    y = t.sub(exponents, t.log(sums))
    return converted(t, y, x.dtype)


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
    # subtracting the largest element keeps exp from overflowing; subtracting an
    # infinite one would give inf - inf = NaN, so 0 replaces it
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
