"""Writing at indices: scatter, index_add, index_put and others.

A *place* is a position along the indexed axis. An index *names* a place. There are two
ways to write:

- SCATTER (``scattered``) writes rows, but no two indices may name the same row. Rules
  use it where torch leaves undefined which of several values for one place remains.
- Comparisons (``index_matches``) of each place with every index that may name it. They
  are used where equal indices have a defined result: their values are combined (added,
  for example) or all equal. They take places * indices comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ...ir.dynamic_sizes import exceeds
from ...ir.graph import Value
from ...ir.types import FLOATS, DType
from ..builder import Operand, Tosa
from ..geometry.layout import axis_of, flattened
from ..promotion import converted
from ..ranges.index_bounds import each_axis, elements, positions
from ..ranges.value_ranges import range_of_type
from ..registry import lowers
from .elementwise import scaled
from .index import (
    addressed,
    from_start,
    movable_type,
    numbers_along,
    ranked_pair,
    rows_of,
    shape_along,
)
from .shape import expanded, without_axes

aten = torch.ops.aten
inf = math.inf

ALONG = {"index": positions("self", "dim")}
"""The indices that eager accepts: positions along ``dim``."""
ALONG_FROM_END = {"index": positions("self", "dim", from_end=True)}
"""As ALONG; negative positions count from the end."""
COMPARISONS = 1 << 22
"""The most comparisons of places with indices that are lowered.

For a size known at run time only, the smallest possible size counts.
"""


def scattered(t: Tosa, values: Value, places: Value, source: Value) -> Value:
    """values [N,K,C], places [N,W], source [N,W,C] -> ``values``, rows replaced.

    Row ``places[n, w]`` of values n becomes ``source[n, w]``.
    """
    # SCATTER does not take BOOL
    moved_type = movable_type(t, values.dtype)
    before = converted(t, values, moved_type)
    after = converted(t, source, moved_type)
    return converted(t, t.scatter(before, places, after), values.dtype)


# ---- values that are combined


class Combination(NamedTuple):
    """How several values for one place become one, for example their sum.

    ``neutral`` is a number that does not change the result: 0 for a sum.
    """

    reduce_axis: Callable[[Tosa, Value, int], Value]
    combine_pair: Callable[[Tosa, Value, Value], Value]
    neutral: float


SUM = Combination(Tosa.reduce_sum, Tosa.add, 0)
PRODUCT = Combination(Tosa.reduce_product, Tosa.mul, 1)
LARGEST = Combination(Tosa.reduce_max, Tosa.maximum, -inf)
SMALLEST = Combination(Tosa.reduce_min, Tosa.minimum, inf)
COMBINATIONS = {
    "sum": SUM,
    "add": SUM,
    "mean": SUM,
    "prod": PRODUCT,
    "multiply": PRODUCT,
    "amax": LARGEST,
    "amin": SMALLEST,
}
"""ATen's names of reductions; a mean is a sum that is divided afterwards."""


def index_matches(t: Tosa, x: Value, axis: int, index: Value) -> Value:
    """x [*A,K,*B], index [*A',W,*B'] -> bool [*A',K,W,*B']: whether index w is k.

    Raises Unsupported for more than COMPARISONS.
    """
    before = index.shape[:axis]
    count = index.shape[axis]
    after = index.shape[axis + 1 :]
    size = x.shape[axis]
    compared = size * math.prod(index.shape)
    t.refuse_unless(
        not exceeds(compared, COMPARISONS),
        f"{compared} comparisons of {count} indices with {size} places are too many",
    )
    indices = t.reshape(index, (*before, 1, count, *after))
    places = numbers_along(t, size, axis, x.rank + 1)
    return t.equal(indices, places)


def _is_named(t: Tosa, matches: Value, axis: int) -> Value:
    """``index_matches`` [*A,K,W,*B] -> bool [*A,K,*B]: whether any index is k"""
    return without_axes(t, t.reduce_any(matches, axis + 1), [axis + 1])


def combined(
    t: Tosa,
    x: Value,
    axis: int,
    index: Value,
    source: Value,
    reduce: str,
    include_self: bool = True,
) -> Value:
    """x [*A,K,*B], index and source [*A',W,*B'] -> x combined with ``source``.

    Where several indices name one place, ``reduce`` combines their values. It is a key of
    COMBINATIONS. ``include_self``: whether the element of x at this place is combined
    too. Other places keep the elements of x. Axes of ``index`` may have size 1 and
    broadcast. Short floats and small integers are combined in 32 bits. Raises
    Unsupported for a mean of integers, and above COMPARISONS.
    """
    combination = COMBINATIONS[reduce]
    dtype = x.dtype
    t.refuse_unless(
        reduce != "mean" or dtype in FLOATS, f"a mean of {dtype} is not lowered"
    )
    wide = _wide_type(dtype)
    x = converted(t, x, wide)
    source = converted(t, source, wide)
    matches = index_matches(t, x, axis, index)
    values = t.reshape(source, (*source.shape[:axis], 1, *source.shape[axis:]))
    # for each place, combine the values with its index; all other values count as
    # the neutral number
    chosen = t.select(matches, values, _neutral(t, combination, x))
    result = combination.reduce_axis(t, chosen, axis + 1)
    result = without_axes(t, result, [axis + 1])
    if include_self:
        # the index may be smaller than x along other axes: only the corner of x that
        # begins at 0 is written
        corner = t.slice(x, [0] * x.rank, result.shape)
        result = combination.combine_pair(t, corner, result)
    if reduce == "mean":
        count = _count(t, matches, axis, wide)
        if include_self:
            count = t.add(count, 1.0)
        # the quotient is not used where the count is 0
        result = t.mul(result, t.reciprocal(t.maximum(count, 1.0)))
    is_named = expanded(t, _is_named(t, matches, axis), result.shape)
    is_replaced = _pad_to_shape(t, is_named, x, False)
    result = _pad_to_shape(t, result, x, 0)
    return converted(t, t.select(is_replaced, result, x), dtype)


def _count(t: Tosa, matches: Value, axis: int, dtype: DType) -> Value:
    """``index_matches`` [*A,K,W,*B] -> [*A,K,*B]: how many indices are k"""
    one = t.constant(1, dtype, (1,) * matches.rank)
    count = t.reduce_sum(t.select(matches, one, 0), axis + 1)
    return without_axes(t, count, [axis + 1])


def _wide_type(dtype: DType) -> DType:
    """Return the type to combine ``dtype`` in: fp32, int64 or int32."""
    if dtype in FLOATS:
        return DType.FP32
    if dtype is DType.INT64:
        return dtype
    return DType.INT32


def _neutral(t: Tosa, combination: Combination, x: Value) -> Value:
    """Return the neutral number of ``combination`` as a constant of the type of x.

    It is [1,..,1] with one axis more than x. For integers, the smallest and the largest
    int32 replace -inf and inf.
    """
    number = combination.neutral
    if x.dtype not in FLOATS and math.isinf(number):
        smallest, largest = range_of_type(DType.INT32)
        number = largest if number > 0 else smallest
    return t.constant(number, x.dtype, (1,) * (x.rank + 1))


def _pad_to_shape(t: Tosa, part: Value, x: Value, number: float) -> Value:
    """Pad ``part`` with ``number`` at the end of each axis to the shape of x."""
    padding: list[int] = []
    for size, present in zip(x.shape, part.shape, strict=True):
        padding += [0, size - present]
    return t.pad(part, padding, number)


def _corner(t: Tosa, source: Value, index: Value) -> Value:
    """Return the first elements of ``source`` along each axis, as many as in ``index``.

    torch ignores all others.
    """
    source = t.ranked(source, index.rank)
    return t.slice(source, [0] * index.rank, index.shape)


# ---- one index an element


@lowers(aten.scatter.src, indexes=ALONG)
def scatter_src(t: Tosa, self: Value, dim: int, index: Value, src: Value) -> Value:
    """self [*A,K,*B], index [*A',W,*B'], src [*A',W,*B'] -> [*A,K,*B]"""
    x, indices = ranked_pair(t, self, index)
    values, rows = addressed(t, x, dim, indices)
    source = t.reshape(_corner(t, src, indices), (*rows.shape, 1))
    return t.reshape(scattered(t, values, rows, source), self.shape)


@lowers(aten.scatter.value, indexes=ALONG)
def scatter_value(t: Tosa, self: Value, dim: int, index: Value, value: float) -> Value:
    """self [*A,K,*B], index [*A',W,*B'] -> [*A,K,*B]; writes ``value`` at each index;
    indices may be equal
    """
    x, indices = ranked_pair(t, self, index)
    axis = axis_of(dim, x.rank)
    matches = index_matches(t, x, axis, indices)
    is_named = _is_named(t, matches, axis)
    # the index may be smaller than x along other axes
    is_written = _pad_to_shape(t, is_named, x, False)
    return t.reshape(t.select(is_written, t.like(value, x), x), self.shape)


def _combined_elements(
    t: Tosa,
    x: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    include_self: bool = True,
) -> Value:
    """Return ``combined`` for arguments that torch allows.

    Tensors may have rank 0, ``dim`` may be negative, and ``source`` may be larger than
    ``index``.
    """
    x_ranked, indices = ranked_pair(t, x, index)
    axis = axis_of(dim, x_ranked.rank)
    values = _corner(t, source, indices)
    y = combined(t, x_ranked, axis, indices, values, reduce, include_self)
    return t.reshape(y, x.shape)


@lowers(
    aten.scatter_add.default,
    aten.scatter.reduce,
    aten.scatter_reduce.two,
    indexes=ALONG,
)
def scatter_reduce(
    t: Tosa,
    self: Value,
    dim: int,
    index: Value,
    src: Value,
    reduce: str = "add",
    include_self: bool = True,
) -> Value:
    """self [*A,K,*B], index [*A',W,*B'], src [*A',W,*B'] -> [*A,K,*B]; combines
    elements by ``reduce``; scatter_add has none and adds them
    """
    return _combined_elements(t, self, dim, index, src, reduce, include_self)


@lowers(aten.scatter.value_reduce, indexes=ALONG)
def scatter_value_reduce(
    t: Tosa, self: Value, dim: int, index: Value, value: float, reduce: str
) -> Value:
    """self [*A,K,*B], index [*A',W,*B'] -> [*A,K,*B]; adds ``value`` to the element of
    each index, or multiplies the element by it
    """
    # torch treats an index [] as [1]
    shape = index.shape or (1,)
    number = t.constant(value, self.dtype, (1,) * len(shape))
    source = t.tile(number, shape)
    return _combined_elements(t, self, dim, index, source, reduce)


# ---- one index a slice


class Slices(NamedTuple):
    """Arguments of ``combined`` for one index [W] that names whole slices of x.

    ``x`` and ``source`` have at least one axis. ``places`` is the index as
    [1,..,W,..,1], which broadcasts over all other axes.
    """

    x: Value
    axis: int
    places: Value
    source: Value


def _slices(t: Tosa, x: Value, dim: int, index: Value, source: Value) -> Slices:
    """Return arguments of ``combined``; ``index`` [W] names slices of x along ``dim``."""
    x = t.ranked(x, max(x.rank, 1))
    axis = axis_of(dim, x.rank)
    places = t.reshape(index, shape_along(x.rank, axis, math.prod(index.shape)))
    return Slices(x, axis, places, t.ranked(source, x.rank))


@lowers(aten.index_add.default, indexes=ALONG)
def index_add(
    t: Tosa, self: Value, dim: int, index: Value, source: Value, alpha: float
) -> Value:
    """self [*A,K,*B], index [W], source [*A,W,*B] -> [*A,K,*B]"""
    x, axis, places, values = _slices(t, self, dim, index, source)
    values = scaled(t, values, alpha)  # type: ignore[assignment]
    y = combined(t, x, axis, places, values, "add")
    return t.reshape(y, self.shape)


@lowers(aten.index_reduce.default, indexes=ALONG)
def index_reduce(
    t: Tosa,
    self: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    include_self: bool,
) -> Value:
    """self [*A,K,*B], index [W], source [*A,W,*B] -> [*A,K,*B]; prod, mean, amax or
    amin
    """
    x, axis, places, values = _slices(t, self, dim, index, source)
    y = combined(t, x, axis, places, values, reduce, include_self)
    return t.reshape(y, self.shape)


@lowers(aten.index_copy.default, indexes=ALONG)
def index_copy(t: Tosa, self: Value, dim: int, index: Value, source: Value) -> Value:
    """self [*A,K,*B], index [W], source [*A,W,*B] -> [*A,K,*B]"""
    x = t.ranked(self, max(self.rank, 1))
    axes_before = axis_of(dim, x.rank)
    indices = [None] * axes_before + [t.ranked(index, 1)]
    rows = rows_of(t, x, indices)
    values = t.reshape(source, (*rows.places.shape, rows.values.shape[2]))
    y = scattered(t, rows.values, rows.places, values)
    return t.reshape(y, self.shape)


@lowers(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor, indexes=ALONG_FROM_END)
def index_fill(t: Tosa, self: Value, dim: int, index: Value, value: Operand) -> Value:
    """self [*A,K,*B], index [W], value [] -> [*A,K,*B]; writes ``value`` at each index;
    indices may be equal
    """
    if not isinstance(value, Value):
        value = t.constant(value, self.dtype, ())
    x = t.ranked(self, max(self.rank, 1))
    axis = axis_of(dim, x.rank)
    places = from_start(t, index, x.shape[axis])
    places = t.reshape(places, shape_along(x.rank, axis, math.prod(index.shape)))
    matches = index_matches(t, x, axis, places)
    is_named = _is_named(t, matches, axis)
    number = t.ranked(converted(t, value, self.dtype), x.rank)
    return t.reshape(t.select(is_named, number, x), self.shape)


# ---- one index an axis


@lowers(
    aten.index_put.default,
    aten._unsafe_index_put.default,
    indexes={"indices": each_axis("self")},
)
def index_put(
    t: Tosa,
    self: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool,
) -> Value:
    """self [*S], several indices [*I] that broadcast, values [*A,*I,*B] -> [*S]; or one
    mask instead of the indices
    """
    present = [index for index in indices if index is not None]
    if present and present[0].dtype is DType.BOOL:
        return _put_masked(t, self, indices, values, accumulate)
    rows = rows_of(t, self, indices)
    batch, count = rows.places.shape
    width = rows.values.shape[2]
    source = t.reshape(expanded(t, values, rows.result), (batch, count, width))
    if accumulate:
        index = t.reshape(rows.places, (batch, count, 1))
        y = combined(t, rows.values, 1, index, source, "add")
    else:
        y = scattered(t, rows.values, rows.places, source)
    # undo the reshape and the transpose of ``rows_of``
    y = t.reshape(y, [self.shape[axis] for axis in rows.order])
    perms = [rows.order.index(axis) for axis in range(self.rank)]
    return t.transpose(y, perms)


@lowers(aten.put.default, indexes={"index": elements("self")})
def put(t: Tosa, self: Value, index: Value, source: Value, accumulate: bool) -> Value:
    """self [*S], index [*I], source [*I] -> [*S]; an index into self as if it had one
    axis
    """
    flat = flattened(t, self)
    values = t.reshape(source, index.shape)
    return t.reshape(index_put(t, flat, [index], values, accumulate), self.shape)


def _put_masked(
    t: Tosa, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool
) -> Value:
    """Return x with ``values`` where the mask is true, or with them added to x.

    The mask is the only index that is not None. ``values`` has to be the same for each
    true element: one number, or one slice of the axes after the mask's. Raises
    Unsupported otherwise.
    """
    (mask,) = [index for index in indices if index is not None]
    # x has ``before`` axes, then those of the mask, then the ``after`` axes of a slice
    before = indices.index(mask)
    after = x.rank - before - mask.rank
    first_slice_axis = max(values.rank - after, 0)
    lead = values.shape[:first_slice_axis]
    slice_shape = values.shape[first_slice_axis:]
    is_one_slice = before == 0 and lead in ((), (1,))
    is_one_number = math.prod(values.shape) == 1
    t.refuse_unless(
        is_one_slice or is_one_number,
        "the number of values that a mask writes depends on the data",
    )
    new = t.reshape(values, slice_shape if before == 0 else ())
    new = converted(t, t.ranked(new, x.rank), x.dtype)
    if accumulate:
        new = t.add(x, new)
    condition = t.reshape(mask, (1,) * before + mask.shape + (1,) * after)
    return t.select(condition, new, x)
