"""Running sums, products and extremes, and ``masked_scatter``, which uses a sum.

TOSA has no scan. In round k, each element is combined with the element 2^k before it,
so log2(N) rounds are enough: [a, b, c, d] -> [a, a+b, b+c, c+d] -> [a, a+b, a+b+c,
a+b+c+d]. This rounds less than adding one element after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from ...ir.dynamic_sizes import LARGEST_SIZE, is_dynamic, smallest
from ...ir.dynamic_sizes import range_of as size_range
from ...ir.graph import Value
from ...ir.types import FLOATS, SHORT_FLOATS, DType
from ..builder import Tosa
from ..geometry.layout import axis_of
from ..promotion import converted
from ..ranges.value_ranges import range_of
from ..registry import lowers
from .elementwise import product
from .exponential import logaddexp
from .index import gathered
from .linear import broadcast
from .reduce import in_result_type
from .shape import expanded, slice_axis

aten = torch.ops.aten
inf = math.inf


def scanned(
    t: Tosa,
    x: Value,
    dim: int,
    combine: Callable[[Value, Value], Value],
    neutral: float,
) -> Value:
    """x [*A,N,*B] -> y [*A,N,*B]: y[n] combines the elements x[0] .. x[n] of ``dim``.

    ``neutral`` is the neutral number of ``combine``: 0 for sums, 1 for products. If N
    is known at run time only, there are as many rounds as the largest N needs: 31 if
    the size has no maximum.
    """
    if x.rank == 0:
        return x
    axis = axis_of(dim, x.rank)
    longest = _longest(x, axis)
    distance = 1
    while distance < longest:
        earlier = _moved_back(t, x, axis, distance, neutral)
        x = combine(earlier, x)
        distance *= 2
    return x


def _longest(x: Value, axis: int) -> int:
    """Return the largest size that ``axis`` can have at run time."""
    return min(size_range(x.shape[axis])[1], LARGEST_SIZE)


def _moved_back(t: Tosa, x: Value, axis: int, distance: int, neutral: float) -> Value:
    """x [*A,N,*B] -> [*A,N,*B] with element i at i + ``distance`` along ``axis``.

    ``neutral`` fills the beginning.
    """
    size = x.shape[axis]
    padding = [0] * (2 * x.rank)
    padding[2 * axis] = smallest(distance, size)
    if is_dynamic(size):  # the axis may be shorter than the distance
        padded = t.pad(x, padding, neutral)
        return slice_axis(t, padded, axis, 0, size)
    kept = slice_axis(t, x, axis, 0, size - distance)
    return t.pad(kept, padding, neutral)


@lowers(aten.cumsum.default)
def cumsum(t: Tosa, self: Value, dim: int, dtype: torch.dtype | None) -> Value:
    """[*A,N,*B] -> [*A,N,*B]; fp16 and bf16 are summed in fp32"""
    x = in_result_type(t, self, dtype)
    wide = converted(t, x, DType.FP32) if x.dtype in SHORT_FLOATS else x
    sums = _running_sums(t, wide, dim)
    return converted(t, sums, x.dtype)


def _running_sums(t: Tosa, x: Value, dim: int) -> Value:
    """x [*A,N,*B] -> [*A,N,*B], the running sums along ``dim``.

    Every partial sum of integers has at most N terms, which bounds its range. If the
    range fits, int64 is computed as int32.
    """
    if x.dtype in FLOATS or x.rank == 0:
        return scanned(t, x, dim, t.add, 0)
    low, high = range_of(x)
    longest = _longest(x, axis_of(dim, x.rank))
    with t.proven((min(low * longest, 0), max(high * longest, 0))):
        return scanned(t, x, dim, t.add, 0)


@lowers(aten.cumprod.default)
def cumprod(t: Tosa, self: Value, dim: int, dtype: torch.dtype | None) -> Value:
    """[*A,N,*B] -> [*A,N,*B]; fp16 and bf16 are multiplied in fp32; an overflow
    followed by a 0 is NaN: inf * 0
    """
    x = in_result_type(t, self, dtype)
    wide = converted(t, x, DType.FP32) if x.dtype in SHORT_FLOATS else x
    products = scanned(t, wide, dim, partial(product, t), 1)
    return converted(t, products, x.dtype)


@lowers(aten.masked_scatter.default)
def masked_scatter(t: Tosa, self: Value, mask: Value, source: Value) -> Value:
    """self [*S], mask bool [*S] -> [*S]; true elements of the mask take the elements of
    ``source``, in order
    """
    shape = broadcast(self.shape, mask.shape)
    mask = expanded(t, mask, shape)
    elements = math.prod(shape)
    # the k-th true element takes element k - 1 of ``source``
    ones = t.reshape(t.cast(mask, DType.INT32), (elements,))
    count = scanned(t, ones, 0, t.add, 0)
    size = math.prod(source.shape)
    # before the first true element the count is 0; the result is not used there
    position = t.maximum(t.sub(count, 1), 0)
    position = t.minimum(position, size - 1)
    values = t.reshape(source, (1, size, 1))
    selected = gathered(t, values, t.reshape(position, (1, elements)))
    on_true = t.reshape(selected, shape)
    return t.select(mask, on_true, expanded(t, self, shape))


@lowers(aten.logcumsumexp.default)
def logcumsumexp(t: Tosa, self: Value, dim: int) -> Value:
    """[*A,N,*B] -> [*A,N,*B]; log(cumsum(exp(x)))"""
    return scanned(t, self, dim, partial(logaddexp, t), -inf)
