"""Positions of the largest and the smallest elements, and elements in order.

NaN is the greatest element, as in torch. Equal elements keep their order; torch
promises this only for ``argmax`` and stable sorting.
"""

from __future__ import annotations

import math

import torch

from ...ir.dynamic_sizes import exceeds, is_dynamic
from ...ir.dynamic_sizes import range_of as size_range
from ...ir.graph import Value
from ...ir.types import FLOATS, DType
from ..builder import Operand, Tosa
from ..geometry.layout import axis_of
from ..promotion import converted, promoted
from ..ranges.value_ranges import range_of
from ..registry import lowers
from ..torch_values.hints import too_many_comparisons
from .index import addressed, along, counted, from_start, taken, without_axis
from .scan import scanned

aten = torch.ops.aten
inf = math.inf
Pair = tuple[Value, Value]

COMPARISONS = 1 << 22
"""The most pairs of elements that a rule compares.

TOSA has no sort: each element is compared with every other. A size that is known at run
time only is counted as small as it can be.
"""
ONE_BY_ONE = 64
"""For long rows, this many first elements are found one after the other."""


def comparable(t: Tosa, x: Value) -> Value:
    """Return x in a type that TOSA compares: small integers and bool as int32."""
    return (
        x
        if x.dtype in FLOATS or x.dtype is DType.INT64
        else converted(t, x, DType.INT32)
    )


# ---- the largest and the smallest


def first_extreme(t: Tosa, x: Value, axis: int, largest: bool) -> Value:
    """x [*A,N,*B] -> int64 [*A,*B], the index of the first extreme along ``axis``"""
    if x.dtype in FLOATS:
        return converted(t, t.argmax(x if largest else t.negate(x), axis), DType.INT64)
    # ARGMAX takes no int32: find the smallest index of an element that equals the
    # maximum (or minimum)
    wide = comparable(t, x)
    size = x.shape[axis]
    hit = t.equal(wide, (t.reduce_max if largest else t.reduce_min)(wide, axis))
    positions = counted(t, size, along(x.rank, axis, size))
    return without_axis(t, t.reduce_min(t.select(hit, positions, size - 1), axis), axis)


def position(t: Tosa, x: Value, dim: int | None, keepdim: bool, largest: bool) -> Value:
    """x [*A,N,*B] -> int64 [*A,*B], the index of the extreme along ``dim``.

    Among all elements if ``dim`` is None.
    """
    flat = t.reshape(x, (math.prod(x.shape),)) if dim is None or x.rank == 0 else x
    axis = 0 if dim is None else axis_of(dim, x.rank)
    index = first_extreme(t, flat, axis, largest)
    if dim is None or x.rank == 0:
        return t.reshape(index, (1,) * x.rank if keepdim else ())
    return (
        t.reshape(index, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
        if keepdim
        else index
    )


@lowers(aten.argmax.default)
def argmax(t: Tosa, self: Value, dim: int | None, keepdim: bool) -> Value:
    """[*A,N,*B] -> [*A,*B]; int64; if ``dim`` is None, the position among all elements"""
    return position(t, self, dim, keepdim, largest=True)


@lowers(aten.argmin.default)
def argmin(t: Tosa, self: Value, dim: int | None, keepdim: bool) -> Value:
    """[*A,N,*B] -> [*A,*B]; int64; if ``dim`` is None, the position among all elements"""
    return position(t, self, dim, keepdim, largest=False)


def extreme(t: Tosa, x: Value, dim: int, keepdim: bool, largest: bool) -> Pair:
    """x [*A,N,*B] -> extremes along ``dim`` and their indices, [*A,*B] or [*A,1,*B]"""
    if x.rank == 0:
        return x, t.constant(0, DType.INT64, ())
    axis = axis_of(dim, x.rank)
    wide = comparable(t, x)
    value = converted(
        t, (t.reduce_max if largest else t.reduce_min)(wide, axis), x.dtype
    )
    return value if keepdim else without_axis(t, value, axis), position(
        t, x, dim, keepdim, largest
    )


@lowers(aten.max.dim)
def max_dim(t: Tosa, self: Value, dim: int, keepdim: bool) -> Pair:
    """[*A,N,*B] -> [*A,*B], [*A,*B]; values and indices"""
    return extreme(t, self, dim, keepdim, largest=True)


@lowers(aten.min.dim)
def min_dim(t: Tosa, self: Value, dim: int, keepdim: bool) -> Pair:
    """[*A,N,*B] -> [*A,*B], [*A,*B]; values and indices"""
    return extreme(t, self, dim, keepdim, largest=False)


# ---- running extremes


def running(t: Tosa, x: Value, dim: int, largest: bool) -> Pair:
    """x [*A,N,*B] -> the extreme of elements 0 .. n along ``dim``, and its index.

    Of several equal elements it is the index of the last one; NaN equals NaN here.
    """
    if x.rank == 0:
        return x, t.constant(0, DType.INT64, ())
    axis = axis_of(dim, x.rank)
    size = x.shape[axis_of(dim, x.rank)]
    wide = comparable(t, x)
    least, most = (-inf, inf) if x.dtype in FLOATS else range_of(wide)
    best = (
        scanned(t, wide, axis, t.maximum, least)
        if largest
        else scanned(t, wide, axis, t.minimum, most)
    )
    is_best = _equal_or_nan(t, wide, best)
    index = t.select(is_best, counted(t, size, along(x.rank, axis, size)), 0)
    return converted(t, best, x.dtype), scanned(t, index, axis, t.maximum, 0)


def _equal_or_nan(t: Tosa, left: Value, right: Value) -> Value:
    """bool, true where elements are equal or both NaN."""
    are_equal = t.equal(left, right)
    if left.dtype not in FLOATS:
        return are_equal
    return t.logical_or(are_equal, t.logical_and(is_nan(t, left), is_nan(t, right)))


def is_nan(t: Tosa, x: Value) -> Value:
    """bool, true where x is NaN: only NaN does not equal itself."""
    return t.logical_not(t.equal(x, x))


@lowers(aten.cummax.default)
def cummax(t: Tosa, self: Value, dim: int) -> Pair:
    """[*A,N,*B] -> [*A,N,*B], [*A,N,*B]; values and indices"""
    return running(t, self, dim, largest=True)


@lowers(aten.cummin.default)
def cummin(t: Tosa, self: Value, dim: int) -> Pair:
    """[*A,N,*B] -> [*A,N,*B], [*A,N,*B]; values and indices"""
    return running(t, self, dim, largest=False)


# ---- in order


def places(t: Tosa, x: Value, descending: bool, count: int) -> Value:
    """x [N,K] -> int64 [N,count]: positions of the first in a stable sort.

    An element's place in the order is the number of elements that precede it. If K is
    too large for that and ``count`` is small, the elements are found one by one. Raises
    Unsupported if both are too large.
    """
    rows, size = x.shape
    fewest = size_range(rows)[0]
    longest = size_range(size)[1]
    few = not is_dynamic(count) and count <= ONE_BY_ONE
    if few and fewest * longest * longest > COMPARISONS:
        return _one_by_one(t, x, descending, count)
    compared = rows * size * size
    why = too_many_comparisons(
        f"sorting {rows} times {size} elements takes too many comparisons"
    )
    t.require(not exceeds(compared, COMPARISONS), why)
    place = t.reduce_sum(t.cast(_precedes(t, x, descending), DType.INT32), 2)
    # invert the permutation: for each place 0, 1, .., the sum over positions has one
    # term that is not 0
    is_at_place = t.equal(
        place, converted(t, counted(t, count, (1, 1, count)), DType.INT32)
    )
    positions = t.reduce_sum(
        t.select(
            is_at_place, converted(t, counted(t, size, (1, size, 1)), DType.INT32), 0
        ),
        1,
    )
    index = converted(t, t.reshape(positions, (rows, count)), DType.INT64)
    # MINIMUM changes no index: it only bounds the range of indices, which are below
    # the size
    return t.minimum(index, size - 1)


def _one_by_one(t: Tosa, x: Value, descending: bool, count: int) -> Value:
    """As ``places``: each step finds the first extreme that is not found yet.

    NaN is the greatest element: it is found first if ``descending``, else last.
    """
    wide = comparable(t, x)
    size = x.shape[1]
    position = counted(t, size, (1, size))
    nan = is_nan(t, wide) if x.dtype in FLOATS else t.constant(0, DType.BOOL, (1, 1))
    least, most = (-inf, inf) if x.dtype in FLOATS else range_of(wide)
    done = t.constant(0, DType.BOOL, (1, 1))
    indices = []
    for _ in range(count):
        remaining = t.select(
            t.logical_or(done, nan), t.like(least if descending else most, wide), wide
        )
        is_extreme = t.equal(
            wide, (t.reduce_max if descending else t.reduce_min)(remaining, 1)
        )
        # The element with the smallest key comes next: those in ``first``, else those
        # in ``second``, by position. Keys: position - size in ``first``, position in
        # ``second``, size for all others
        first, second = (nan, is_extreme) if descending else (is_extreme, nan)
        key = t.select(first, t.sub(position, size), t.select(second, position, size))
        index = from_start(t, t.reduce_min(t.select(done, size, key), 1), size)
        done = t.logical_or(done, t.equal(position, index))
        indices.append(index)
    return t.minimum(t.concat(indices, 1), size - 1)


def _precedes(t: Tosa, x: Value, descending: bool) -> Value:
    """x [N,K] -> bool [N,K,K]: whether element j comes before element i when sorted

    j is the last axis.
    """
    rows, size = x.shape
    wide = comparable(t, x)
    x_i = t.reshape(wide, (rows, size, 1))
    x_j = t.reshape(wide, (rows, 1, size))
    before = t.greater(x_j, x_i) if descending else t.greater(x_i, x_j)
    tie = t.equal(x_i, x_j)
    if x.dtype in FLOATS:
        # GREATER and EQUAL are false if an operand is NaN, but NaN is the greatest
        # element here and equals itself
        nan_i = is_nan(t, x_i)
        nan_j = is_nan(t, x_j)
        greater, smaller = (nan_j, nan_i) if descending else (nan_i, nan_j)
        before = t.logical_or(before, t.logical_and(greater, t.logical_not(smaller)))
        tie = t.logical_or(tie, t.logical_and(nan_i, nan_j))
    # element j comes first of equal ones if j < i
    earlier = t.greater(counted(t, size, (1, size, 1)), counted(t, size, (1, 1, size)))
    return t.logical_or(before, t.logical_and(tie, earlier))


def ordered(
    t: Tosa, x: Value, dim: int, descending: bool, first: int, count: int
) -> Pair:
    """x [*A,N,*B] -> ``count`` sorted elements along ``dim`` from ``first``, indices.

    Both are [*A,count,*B]; a tensor [] gives itself and 0.
    """
    if x.rank == 0:
        return x, t.constant(0, DType.INT64, ())
    axis = axis_of(dim, x.rank)
    size = x.shape[axis]
    axis_last = [*(a for a in range(x.rank) if a != axis), axis]
    # x [*A,N,*B] -> [*A,*B,N] -> rows [R,N]
    moved = t.transpose(x, axis_last)
    rows = t.reshape(moved, (math.prod(x.shape) // size, size))
    index = t.slice(
        places(t, rows, descending, first + count), (0, first), (rows.shape[0], count)
    )
    values = taken(t, t.reshape(rows, (*rows.shape, 1)), index)
    # [R,count] -> [*A,*B,count] -> [*A,count,*B]
    shape = (*moved.shape[:-1], count)
    back = sorted(range(x.rank), key=axis_last.__getitem__)
    return t.transpose(t.reshape(values, shape), back), t.transpose(
        t.reshape(index, shape), back
    )


@lowers(aten.sort.default, aten.sort.stable)
def sort(t: Tosa, self: Value, dim: int, descending: bool) -> Pair:
    """[*A,N,*B] -> [*A,N,*B], [*A,N,*B]; values and indices"""
    return ordered(
        t,
        self,
        dim,
        descending,
        0,
        self.shape[axis_of(dim, self.rank)] if self.rank else 1,
    )


@lowers(aten.argsort.default)
def argsort(t: Tosa, self: Value, dim: int, descending: bool) -> Value:
    """[*A,N,*B] -> [*A,N,*B]; int64"""
    return sort(t, self, dim, descending)[1]


@lowers(aten.msort.default)
def msort(t: Tosa, self: Value) -> Value:
    """[N,*S] -> [N,*S]"""
    return sort(t, self, 0, False)[0]


@lowers(aten.topk.default)
def topk(t: Tosa, self: Value, k: int, dim: int, largest: bool) -> Pair:
    """[*A,N,*B] -> [*A,k,*B], [*A,k,*B]; values and indices, sorted even if ``sorted``
    is False
    """
    return ordered(t, self, dim, largest, 0, k)


@lowers(aten.kthvalue.default)
def kthvalue(t: Tosa, self: Value, k: int, dim: int, keepdim: bool) -> Pair:
    """[*A,N,*B] -> [*A,*B], [*A,*B]; the k-th smallest element, where k = 1 is the
    smallest, and its index
    """
    return _element_at_place(t, self, k - 1, dim, keepdim)


def _element_at_place(t: Tosa, x: Value, place: int, dim: int, keepdim: bool) -> Pair:
    """Return the element at ``place`` of the ascending order, and its index."""
    value, index = ordered(t, x, dim, False, place, 1)
    if keepdim or x.rank == 0:
        return value, index
    axis = axis_of(dim, x.rank)
    return without_axis(t, value, axis), without_axis(t, index, axis)


@lowers(aten.median.dim)
def median_dim(t: Tosa, self: Value, dim: int, keepdim: bool) -> Pair:
    """[*A,N,*B] -> [*A,*B], [*A,*B]; the median (the lower of two) and its index; NaN
    if any element is NaN
    """
    size = self.shape[axis_of(dim, self.rank)] if self.rank else 1
    value, index = _element_at_place(t, self, (size - 1) // 2, dim, keepdim)
    if self.dtype not in FLOATS:
        return value, index
    # the largest element is NaN if there is any
    largest, index_of_largest = extreme(t, self, dim, keepdim, largest=True)
    has_nan = is_nan(t, largest)
    return t.select(has_nan, largest, value), t.select(has_nan, index_of_largest, index)


@lowers(aten.median.default)
def median(t: Tosa, self: Value) -> Value:
    """[*S] -> []; the lower of two in the middle; NaN if any element is NaN"""
    return median_dim(t, t.reshape(self, (math.prod(self.shape),)), 0, False)[0]


# ---- places in a sorted row


def count_before(t: Tosa, row: Value, x: Value, right: bool, out_int32: bool) -> Value:
    """row [*A,K] ascending, x [*A,N] -> [*A,N]: how many elements are less than x.

    With ``right``, elements equal to x are counted too. NaN is the greatest element.
    Raises Unsupported for more than COMPARISONS pairs.
    """
    elements, values = promoted(
        t,
        t.reshape(row, (*row.shape[:-1], 1, row.shape[-1])),
        t.reshape(x, (*x.shape, 1)),
    )
    compared = math.prod(x.shape) * row.shape[-1]
    why = too_many_comparisons(
        f"a search takes {compared} comparisons, which are too many"
    )
    t.require(not exceeds(compared, COMPARISONS), why)
    # not greater, instead of less: for x = NaN every comparison is false, and all
    # elements count
    before = t.logical_not(
        t.greater(elements, values) if right else t.greater_equal(elements, values)
    )
    count = t.reduce_sum(t.cast(before, DType.INT32), before.rank - 1)
    return converted(
        t, t.reshape(count, x.shape), DType.INT32 if out_int32 else DType.INT64
    )


@lowers(aten.bucketize.Tensor)
def bucketize(
    t: Tosa, self: Value, boundaries: Value, out_int32: bool, right: bool
) -> Value:
    """[*S], boundaries [K] -> [*S]; int64 or int32"""
    flat = t.reshape(self, (math.prod(self.shape),))
    return t.reshape(count_before(t, boundaries, flat, right, out_int32), self.shape)


@lowers(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    t: Tosa,
    sorted_sequence: Value,
    self: Operand,
    out_int32: bool,
    right: bool,
    side: str | None,
    sorter: Value | None,
) -> Value:
    """sorted_sequence [*A,K] or [K], self [*A,N] or a number -> [*A,N]; int64 or int32

    ``sorter`` [*A,K] holds the indices that sort the sequence; None means that it is
    sorted.
    """
    row = sorted_sequence
    on_right = right if side is None else side == "right"
    x = self if isinstance(self, Value) else t.constant(self, row.dtype, ())
    if sorter is not None:
        row = t.reshape(taken(t, *addressed(t, row, -1, sorter)), sorter.shape)
    # one row for each row of x, else a single one for all elements
    if row.rank == x.rank:
        return count_before(t, row, x, on_right, out_int32)
    return bucketize(t, x, row, out_int32, on_right)
