"""Operators that compare elements along an axis: argmax, cummax, sort and others.

An extreme is the largest or the smallest element. NaN is the greatest element, as in
torch. Equal elements keep their order; torch promises this only for ``argmax`` and
stable sorting.

TOSA has no sort. A rule compares each element with every other, or finds one element
after the other.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ...ir.dynamic_sizes import exceeds, is_dynamic
from ...ir.dynamic_sizes import range_of as size_range
from ...ir.graph import Value
from ...ir.types import FLOATS, DType
from ..builder import Operand, Tosa
from ..geometry.layout import axis_of, flattened
from ..promotion import converted, promoted
from ..ranges.value_ranges import range_of
from ..registry import lowers
from ..torch_values.hints import too_many_comparisons
from .index import addressed, from_start, gathered, numbers_along
from .scan import scanned
from .shape import replace_axis, without_axes

aten = torch.ops.aten
inf = math.inf

COMPARISONS = 1 << 22
"""The most pairs of elements that a rule compares.

For a size known at run time only, the smallest possible size counts.
"""
ONE_BY_ONE = 64
"""The most elements that are found one after the other, each in a scan of the row."""


class Selected(NamedTuple):
    """Elements selected from a tensor, and their int64 positions along an axis."""

    values: Value
    indices: Value


def _comparable(t: Tosa, x: Value) -> Value:
    """Return x in a type that TOSA compares: small integers and bool as int32."""
    if x.dtype in FLOATS or x.dtype is DType.INT64:
        return x
    return converted(t, x, DType.INT32)


def _reduce_extreme(t: Tosa, x: Value, axis: int, largest: bool) -> Value:
    """x [*A,N,*B] -> [*A,1,*B], the largest or smallest element along ``axis``."""
    if largest:
        return t.reduce_max(x, axis)
    return t.reduce_min(x, axis)


def _limits(x: Value) -> tuple[float, float]:
    """Return two numbers: no element of x is below the first or above the second."""
    if x.dtype in FLOATS:
        return -inf, inf
    return range_of(x)


# ---- the largest and the smallest


def _first_extreme(t: Tosa, x: Value, axis: int, largest: bool) -> Value:
    """x [*A,N,*B] -> int64 [*A,*B], the index of the first extreme along ``axis``"""
    if x.dtype in FLOATS:
        searched = x if largest else t.negate(x)
        return converted(t, t.argmax(searched, axis), DType.INT64)
    # ARGMAX takes no int32: find the smallest index of an element that equals the
    # extreme
    wide = _comparable(t, x)
    size = x.shape[axis]
    is_extreme = t.equal(wide, _reduce_extreme(t, wide, axis, largest))
    positions = numbers_along(t, size, axis, x.rank)
    candidates = t.select(is_extreme, positions, size - 1)
    return without_axes(t, t.reduce_min(candidates, axis), [axis])


def _extreme_index(
    t: Tosa, x: Value, dim: int | None, keepdim: bool, largest: bool
) -> Value:
    """x [*A,N,*B] -> int64 [*A,*B], the index of the extreme along ``dim``.

    If ``dim`` is None, return the flat index of the extreme of all elements.
    """
    if dim is None or x.rank == 0:
        flat = flattened(t, x)
        index = _first_extreme(t, flat, 0, largest)
        shape = (1,) * x.rank if keepdim else ()
        return t.reshape(index, shape)
    axis = axis_of(dim, x.rank)
    index = _first_extreme(t, x, axis, largest)
    if not keepdim:
        return index
    return t.reshape(index, replace_axis(x.shape, axis, 1))


@lowers(aten.argmax.default)
def argmax(t: Tosa, self: Value, dim: int | None, keepdim: bool) -> Value:
    """[*A,N,*B] -> [*A,*B]; int64; if ``dim`` is None, the position among all elements"""
    return _extreme_index(t, self, dim, keepdim, largest=True)


@lowers(aten.argmin.default)
def argmin(t: Tosa, self: Value, dim: int | None, keepdim: bool) -> Value:
    """[*A,N,*B] -> [*A,*B]; int64; if ``dim`` is None, the position among all elements"""
    return _extreme_index(t, self, dim, keepdim, largest=False)


def _extreme_and_index(
    t: Tosa, x: Value, dim: int, keepdim: bool, largest: bool
) -> Selected:
    """x [*A,N,*B] -> extremes along ``dim`` and their indices, [*A,*B] or [*A,1,*B]"""
    if x.rank == 0:
        return _only_element(t, x)
    axis = axis_of(dim, x.rank)
    wide = _comparable(t, x)
    value = converted(t, _reduce_extreme(t, wide, axis, largest), x.dtype)
    if not keepdim:
        value = without_axes(t, value, [axis])
    return Selected(value, _extreme_index(t, x, dim, keepdim, largest))


def _only_element(t: Tosa, x: Value) -> Selected:
    """Return x [] and its index 0."""
    return Selected(x, t.constant(0, DType.INT64, ()))


@lowers(aten.max.dim)
def max_dim(t: Tosa, self: Value, dim: int, keepdim: bool) -> Selected:
    """[*A,N,*B] -> [*A,*B], [*A,*B]; values and indices"""
    return _extreme_and_index(t, self, dim, keepdim, largest=True)


@lowers(aten.min.dim)
def min_dim(t: Tosa, self: Value, dim: int, keepdim: bool) -> Selected:
    """[*A,N,*B] -> [*A,*B], [*A,*B]; values and indices"""
    return _extreme_and_index(t, self, dim, keepdim, largest=False)


# ---- running extremes


def _running_extremes(t: Tosa, x: Value, dim: int, largest: bool) -> Selected:
    """Return the extreme of elements 0 .. n along ``dim`` for each n, and its index.

    Of several equal elements it is the index of the last one; NaN equals NaN here. All
    tensors are [*A,N,*B].
    """
    if x.rank == 0:
        return _only_element(t, x)
    axis = axis_of(dim, x.rank)
    size = x.shape[axis]
    wide = _comparable(t, x)
    lowest, highest = _limits(wide)
    if largest:
        best = scanned(t, wide, axis, t.maximum, lowest)
    else:
        best = scanned(t, wide, axis, t.minimum, highest)
    is_best = _equal_or_nan(t, wide, best)
    positions = numbers_along(t, size, axis, x.rank)
    # the index is the last position so far at which x equals the extreme: for a maximum
    # of [5, 3, 5, 4], the own positions [0, 0, 2, 0] become [0, 0, 2, 2]
    own_position = t.select(is_best, positions, 0)
    index = scanned(t, own_position, axis, t.maximum, 0)
    return Selected(converted(t, best, x.dtype), index)


def _equal_or_nan(t: Tosa, left: Value, right: Value) -> Value:
    """Return bool, true where elements are equal or both NaN."""
    are_equal = t.equal(left, right)
    if left.dtype not in FLOATS:
        return are_equal
    are_nan = t.logical_and(is_nan(t, left), is_nan(t, right))
    return t.logical_or(are_equal, are_nan)


def is_nan(t: Tosa, x: Value) -> Value:
    """Return bool, true where x is NaN: only NaN does not equal itself."""
    return t.logical_not(t.equal(x, x))


@lowers(aten.cummax.default)
def cummax(t: Tosa, self: Value, dim: int) -> Selected:
    """[*A,N,*B] -> [*A,N,*B], [*A,N,*B]; values and indices"""
    return _running_extremes(t, self, dim, largest=True)


@lowers(aten.cummin.default)
def cummin(t: Tosa, self: Value, dim: int) -> Selected:
    """[*A,N,*B] -> [*A,N,*B], [*A,N,*B]; values and indices"""
    return _running_extremes(t, self, dim, largest=False)


# ---- in order


def _sorted_indices(t: Tosa, x: Value, descending: bool, count: int) -> Value:
    """x [N,K] -> int64 [N,count]: positions of the first ``count`` in a stable sort.

    An element's place in the order is the number of elements that precede it: places of
    [7, 3, 5] are [2, 0, 1], and the result is [1, 2, 0]. If K is too large for so many
    comparisons and ``count`` is small, the elements are found one by one. Raises
    Unsupported if both are too large.
    """
    rows, size = x.shape
    fewest_rows, _ = size_range(rows)
    _, longest = size_range(size)
    are_few = not is_dynamic(count) and count <= ONE_BY_ONE
    if are_few and fewest_rows * longest * longest > COMPARISONS:
        return _one_by_one(t, x, descending, count)
    compared = rows * size * size
    why = too_many_comparisons(
        f"sorting {rows} times {size} elements takes too many comparisons"
    )
    t.refuse_unless(not exceeds(compared, COMPARISONS), why)
    precedes = t.cast(_precedes(t, x, descending), DType.INT32)
    place = t.reduce_sum(precedes, 2)
    # invert the permutation: for each place 0, 1, .., sum the positions of the elements
    # at this place, of which there is one
    all_places = converted(t, numbers_along(t, count, axis=2, rank=3), DType.INT32)
    is_at_place = t.equal(place, all_places)
    all_positions = converted(t, numbers_along(t, size, axis=1, rank=3), DType.INT32)
    positions = t.reduce_sum(t.select(is_at_place, all_positions, 0), 1)
    index = converted(t, t.reshape(positions, (rows, count)), DType.INT64)
    # MINIMUM changes no index: it only bounds the range of indices, which are below
    # the size
    return t.minimum(index, size - 1)


def _one_by_one(t: Tosa, x: Value, descending: bool, count: int) -> Value:
    """Return ``_sorted_indices``: each step finds the next element of the order.

    NaN is the greatest element: it is found first if ``descending``, else last.
    """
    wide = _comparable(t, x)
    size = x.shape[1]
    position = numbers_along(t, size, axis=1, rank=2)
    nowhere = t.constant(0, DType.BOOL, (1, 1))
    nan = is_nan(t, wide) if x.dtype in FLOATS else nowhere
    lowest, highest = _limits(wide)
    last = lowest if descending else highest
    is_found = nowhere
    indices = []
    for _ in range(count):
        is_left_out = t.logical_or(is_found, nan)
        remaining = t.select(is_left_out, t.like(last, wide), wide)
        extreme = _reduce_extreme(t, remaining, 1, largest=descending)
        is_extreme = t.equal(wide, extreme)
        # The element with the smallest key comes next. The key of an element in
        # ``first`` is position - size, a negative number. In ``second``, it is the
        # position. All others have the key size.
        first = nan if descending else is_extreme
        second = is_extreme if descending else nan
        key_in_first = t.sub(position, size)
        key = t.select(second, position, size)
        key = t.select(first, key_in_first, key)
        key = t.select(is_found, size, key)
        # a negative key becomes a position again
        index = from_start(t, t.reduce_min(key, 1), size)
        is_found = t.logical_or(is_found, t.equal(position, index))
        indices.append(index)
    # MINIMUM changes no index: it only bounds their range
    return t.minimum(t.concat(indices, 1), size - 1)


def _precedes(t: Tosa, x: Value, descending: bool) -> Value:
    """x [N,K] -> bool [N,K,K]: [n,i,j] is whether j comes before i in the sorted row n."""
    rows, size = x.shape
    wide = _comparable(t, x)
    x_i = t.reshape(wide, (rows, size, 1))
    x_j = t.reshape(wide, (rows, 1, size))
    if descending:
        before = t.greater(x_j, x_i)
    else:
        before = t.greater(x_i, x_j)
    tie = t.equal(x_i, x_j)
    if x.dtype in FLOATS:
        # GREATER and EQUAL are false if an operand is NaN, but NaN is the greatest
        # element here and equals itself
        nan_i = is_nan(t, x_i)
        nan_j = is_nan(t, x_j)
        greater = nan_j if descending else nan_i
        smaller = nan_i if descending else nan_j
        only_greater_is_nan = t.logical_and(greater, t.logical_not(smaller))
        before = t.logical_or(before, only_greater_is_nan)
        both_are_nan = t.logical_and(nan_i, nan_j)
        tie = t.logical_or(tie, both_are_nan)
    # of equal elements, the earlier one comes first
    i = numbers_along(t, size, axis=1, rank=3)
    j = numbers_along(t, size, axis=2, rank=3)
    is_earlier_tie = t.logical_and(tie, t.greater(i, j))
    return t.logical_or(before, is_earlier_tie)


def _sorted_part(
    t: Tosa, x: Value, dim: int, descending: bool, first: int, count: int
) -> Selected:
    """x [*A,N,*B] -> [*A,count,*B], a part of x sorted along ``dim``, and its indices.

    ``first`` is the place of the part's first element in the order.
    """
    if x.rank == 0:
        return _only_element(t, x)
    axis = axis_of(dim, x.rank)
    size = x.shape[axis]
    others = [other for other in range(x.rank) if other != axis]
    axis_last = [*others, axis]
    # x [*A,N,*B] -> [*A,*B,N] -> rows [R,N]
    moved = t.transpose(x, axis_last)
    row_count = math.prod(x.shape) // size
    rows = t.reshape(moved, (row_count, size))
    index = _sorted_indices(t, rows, descending, first + count)
    index = t.slice(index, (0, first), (row_count, count))
    values = gathered(t, t.reshape(rows, (row_count, size, 1)), index)
    # [R,count] -> [*A,*B,count] -> [*A,count,*B]
    shape = (*moved.shape[:-1], count)
    back = [axis_last.index(a) for a in range(x.rank)]
    values = t.transpose(t.reshape(values, shape), back)
    index = t.transpose(t.reshape(index, shape), back)
    return Selected(values, index)


@lowers(aten.sort.default, aten.sort.stable)
def sort(t: Tosa, self: Value, dim: int, descending: bool) -> Selected:
    """[*A,N,*B] -> [*A,N,*B], [*A,N,*B]; values and indices"""
    size = _size_along(self, dim)
    return _sorted_part(t, self, dim, descending, first=0, count=size)


def _size_along(x: Value, dim: int) -> int:
    """Return the number of elements along ``dim``: 1 for a tensor []."""
    if x.rank == 0:
        return 1
    return x.shape[axis_of(dim, x.rank)]


@lowers(aten.argsort.default)
def argsort(t: Tosa, self: Value, dim: int, descending: bool) -> Value:
    """[*A,N,*B] -> [*A,N,*B]; int64"""
    return sort(t, self, dim, descending).indices


@lowers(aten.msort.default)
def msort(t: Tosa, self: Value) -> Value:
    """[N,*S] -> [N,*S]"""
    return sort(t, self, dim=0, descending=False).values


@lowers(aten.topk.default)
def topk(t: Tosa, self: Value, k: int, dim: int, largest: bool) -> Selected:
    """[*A,N,*B] -> [*A,k,*B], [*A,k,*B]; values and indices, sorted even if ``sorted``
    is False
    """
    return _sorted_part(t, self, dim, largest, first=0, count=k)


@lowers(aten.kthvalue.default)
def kthvalue(t: Tosa, self: Value, k: int, dim: int, keepdim: bool) -> Selected:
    """[*A,N,*B] -> [*A,*B], [*A,*B]; the k-th smallest element, where k = 1 is the
    smallest, and its index
    """
    return _element_at_place(t, self, k - 1, dim, keepdim)


def _element_at_place(
    t: Tosa, x: Value, place: int, dim: int, keepdim: bool
) -> Selected:
    """Return the element at ``place`` of the ascending order, and its index."""
    found = _sorted_part(t, x, dim, descending=False, first=place, count=1)
    if keepdim or x.rank == 0:
        return found
    axis = axis_of(dim, x.rank)
    value = without_axes(t, found.values, [axis])
    return Selected(value, without_axes(t, found.indices, [axis]))


@lowers(aten.median.dim)
def median_dim(t: Tosa, self: Value, dim: int, keepdim: bool) -> Selected:
    """[*A,N,*B] -> [*A,*B], [*A,*B]; the median (the lower of two) and its index; NaN
    if any element is NaN
    """
    middle = (_size_along(self, dim) - 1) // 2
    lower = _element_at_place(t, self, middle, dim, keepdim)
    if self.dtype not in FLOATS:
        return lower
    # the largest element is NaN if there is any
    largest = _extreme_and_index(t, self, dim, keepdim, largest=True)
    has_nan = is_nan(t, largest.values)
    value = t.select(has_nan, largest.values, lower.values)
    index = t.select(has_nan, largest.indices, lower.indices)
    return Selected(value, index)


@lowers(aten.median.default)
def median(t: Tosa, self: Value) -> Value:
    """[*S] -> []; the lower of two in the middle; NaN if any element is NaN"""
    flat = flattened(t, self)
    return median_dim(t, flat, dim=0, keepdim=False).values


# ---- places in a sorted row


def _count_before(t: Tosa, row: Value, x: Value, right: bool, out_int32: bool) -> Value:
    """row [*A,K] ascending, x [*A,N] -> [*A,N]: how many elements are less than x.

    With ``right``, elements equal to x are counted too. NaN is the greatest element.
    Raises Unsupported for more than COMPARISONS pairs.
    """
    *lead, length = row.shape
    row = t.reshape(row, (*lead, 1, length))
    elements, values = promoted(t, row, t.reshape(x, (*x.shape, 1)))
    compared = math.prod(x.shape) * length
    why = too_many_comparisons(
        f"a search takes {compared} comparisons, which are too many"
    )
    t.refuse_unless(not exceeds(compared, COMPARISONS), why)
    # "not after" instead of "before": for x = NaN every comparison is false, and all
    # elements count
    if right:
        is_after = t.greater(elements, values)
    else:
        is_after = t.greater_equal(elements, values)
    is_before = t.cast(t.logical_not(is_after), DType.INT32)
    count = t.reduce_sum(is_before, is_before.rank - 1)
    dtype = DType.INT32 if out_int32 else DType.INT64
    return converted(t, t.reshape(count, x.shape), dtype)


@lowers(aten.bucketize.Tensor)
def bucketize(
    t: Tosa, self: Value, boundaries: Value, out_int32: bool, right: bool
) -> Value:
    """[*S], boundaries [K] -> [*S]; int64 or int32"""
    flat = flattened(t, self)
    count = _count_before(t, boundaries, flat, right, out_int32)
    return t.reshape(count, self.shape)


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
    if side is not None:
        right = side == "right"
    x = self if isinstance(self, Value) else t.constant(self, row.dtype, ())
    if sorter is not None:
        rows, index = addressed(t, row, -1, sorter)
        row = t.reshape(gathered(t, rows, index), sorter.shape)
    # x has either one row of the sequence for each of its rows, or a single one for all
    # elements
    if row.rank == x.rank:
        return _count_before(t, row, x, right, out_int32)
    return bucketize(t, x, row, out_int32, right)
