"""Writing at indices.

SCATTER writes rows; no two indices may name the same row. It is used where torch does
not define which of several values for one place remains. Where torch defines the
result, because values are combined or all equal, each place is compared with every
index that may name it: places * values comparisons.
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
from ..geometry.layout import axis_of
from ..promotion import converted
from ..ranges.index_bounds import each_axis, elements, positions
from ..ranges.value_ranges import range_of_type
from ..registry import lowers
from .elementwise import scaled
from .index import (
    addressed,
    along,
    counted,
    from_start,
    movable,
    ranked_pair,
    rows_of,
    without_axis,
)
from .shape import expanded

aten = torch.ops.aten
inf = math.inf

ALONG = {"index": positions("self", "dim")}
"""The indices that eager accepts: positions along ``dim``."""
ALONG_FROM_END = {"index": positions("self", "dim", from_end=True)}
"""As ALONG; negative positions count from the end."""
COMPARISONS = 1 << 22
"""The most comparisons of places with indices.

A size known at run time only is counted as small as it can be.
"""


def written(t: Tosa, values: Value, places: Value, source: Value) -> Value:
    """values [N,K,C] with ``source`` [N,W,C] written to the rows ``places`` [N,W]"""
    # SCATTER does not move all types
    moved_type = movable(t, values.dtype)
    before = converted(t, values, moved_type)
    after = converted(t, source, moved_type)
    return converted(t, t.scatter(before, places, after), values.dtype)


# ---- values that are combined


class Combination(NamedTuple):
    """A reduction of values for one place: ``along`` an axis, and of a ``pair``.

    ``neutral`` is a number that does not change the result.
    """

    along: Callable[[Tosa, Value, int], Value]
    pair: Callable[[Tosa, Value, Value], Value]
    neutral: float


SUM = Combination(Tosa.reduce_sum, Tosa.add, 0)
PRODUCT = Combination(Tosa.reduce_product, Tosa.mul, 1)
LARGEST = Combination(Tosa.reduce_max, Tosa.maximum, -inf)
SMALLEST = Combination(Tosa.reduce_min, Tosa.minimum, inf)
NAMES = {
    "sum": SUM,
    "add": SUM,
    "mean": SUM,
    "prod": PRODUCT,
    "multiply": PRODUCT,
    "amax": LARGEST,
    "amin": SMALLEST,
}
"""ATen's names of reductions; a mean is a sum that is divided afterwards."""


def hits(t: Tosa, x: Value, axis: int, index: Value) -> Value:
    """x [*A,K,*B], index [*A',W,*B'] -> bool [*A',K,W,*B']: whether index w is k"""
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
    places = counted(t, size, along(x.rank + 1, axis, size))
    return t.equal(indices, places)


def _any_hit(t: Tosa, hit: Value, axis: int) -> Value:
    """Return whether an index names each place, from the ``hits`` along ``axis``."""
    return without_axis(t, t.reduce_any(hit, axis + 1), axis + 1)


def combined(
    t: Tosa,
    x: Value,
    axis: int,
    index: Value,
    source: Value,
    name: str,
    include_self: bool = True,
) -> Value:
    """x [*A,K,*B], index and source [*A',W,*B'] -> x combined with ``source``.

    Each value goes to the place of its index. ``name`` is a key of NAMES. Places that
    no index names stay as they are; ``include_self``: whether the element of x at a
    named place is combined too. Axes of ``index`` may have size 1 and broadcast. Short
    floats and small integers are combined in 32 bits. Raises Unsupported for a mean of
    integers, and above COMPARISONS.
    """
    combination = NAMES[name]
    dtype = x.dtype
    t.refuse_unless(
        name != "mean" or dtype in FLOATS, f"a mean of {dtype} is not lowered"
    )
    wide = _wide(dtype)
    x = converted(t, x, wide)
    source = converted(t, source, wide)
    hit = hits(t, x, axis, index)
    values = t.reshape(source, (*source.shape[:axis], 1, *source.shape[axis:]))
    # for each place, combine the values with its index; all other values count as
    # the neutral number
    chosen = t.select(hit, values, _neutral(t, combination, x))
    result = combination.along(t, chosen, axis + 1)
    named = _any_hit(t, hit, axis)
    result = without_axis(t, result, axis + 1)
    # the index may be smaller than x along other axes: only the corner of x is written
    region = t.slice(x, [0] * x.rank, result.shape)
    if name == "mean":
        count = _count(t, hit, axis, wide)
        count = t.add(count, float(include_self))
        if include_self:
            result = t.add(result, region)
        result = t.mul(result, t.reciprocal(t.maximum(count, 1.0)))
    elif include_self:
        result = combination.pair(t, region, result)
    named = expanded(t, named, result.shape)
    is_named = _pad_to_shape(t, named, x, False)
    result = _pad_to_shape(t, result, x, 0)
    return converted(t, t.select(is_named, result, x), dtype)


def _count(t: Tosa, hit: Value, axis: int, dtype: DType) -> Value:
    """Return how many indices name each place, from the ``hits`` along ``axis``."""
    one = t.constant(1, dtype, (1,) * hit.rank)
    count = t.reduce_sum(t.select(hit, one, 0), axis + 1)
    return without_axis(t, count, axis + 1)


def _wide(dtype: DType) -> DType:
    """Return the type to combine ``dtype`` in: fp32, int64 or int32."""
    if dtype in FLOATS:
        return DType.FP32
    return dtype if dtype is DType.INT64 else DType.INT32


def _neutral(t: Tosa, combination: Combination, x: Value) -> Value:
    """Return the neutral number of ``combination`` as a constant [1, ..., 1].

    It has the type of x and one axis more. For integers, the smallest and the largest
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

    torch ignores the rest.
    """
    return t.slice(t.ranked(source, index.rank), [0] * index.rank, index.shape)


# ---- one index an element


@lowers(aten.scatter.src, indexes=ALONG)
def scatter_src(t: Tosa, self: Value, dim: int, index: Value, src: Value) -> Value:
    """self [*A,K,*B], index [*A',W,*B'], src [*A',W,*B'] -> [*A,K,*B]"""
    x, indices = ranked_pair(t, self, index)
    values, rows = addressed(t, x, dim, indices)
    source = t.reshape(_corner(t, src, indices), (*rows.shape, 1))
    return t.reshape(written(t, values, rows, source), self.shape)


@lowers(aten.scatter.value, indexes=ALONG)
def scatter_value(t: Tosa, self: Value, dim: int, index: Value, value: float) -> Value:
    """self [*A,K,*B], index [*A',W,*B'] -> [*A,K,*B]; writes ``value`` at each index;
    indices may be equal
    """
    x, indices = ranked_pair(t, self, index)
    axis = axis_of(dim, x.rank)
    is_named = _any_hit(t, hits(t, x, axis, indices), axis)
    # the index may be smaller than x along other axes
    is_written = _pad_to_shape(t, is_named, x, False)
    return t.reshape(t.select(is_written, t.like(value, x), x), self.shape)


def _combined_elements(
    t: Tosa,
    x: Value,
    dim: int,
    index: Value,
    source: Value,
    name: str,
    include_self: bool = True,
) -> Value:
    """Combine ``source`` with x, as ``combined`` does, for arguments of torch.

    Tensors may have rank 0, ``dim`` may be negative, and ``source`` may be larger than
    ``index``.
    """
    x_ranked, indices = ranked_pair(t, x, index)
    axis = axis_of(dim, x_ranked.rank)
    values = _corner(t, source, indices)
    y = combined(t, x_ranked, axis, indices, values, name, include_self)
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
    """self [*A,K,*B], index [*A',W,*B'], src [*A',W,*B'] -> [*A,K,*B]; ``reduce``, or
    added without it
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
    """Arguments of ``combined`` for an index that names slices.

    ``x`` and ``source`` have at least one axis; ``places`` [1,..,W,..,1] broadcast over
    all others.
    """

    x: Value
    axis: int
    places: Value
    source: Value


def _slices(t: Tosa, x: Value, dim: int, index: Value, source: Value) -> Slices:
    """Return arguments of ``combined``; ``index`` [W] names slices of x along ``dim``."""
    x = t.ranked(x, max(x.rank, 1))
    axis = axis_of(dim, x.rank)
    places = t.reshape(index, along(x.rank, axis, math.prod(index.shape)))
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
    y = written(t, rows.values, rows.places, values)
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
    places = t.reshape(places, along(x.rank, axis, math.prod(index.shape)))
    named = _any_hit(t, hits(t, x, axis, places), axis)
    number = t.ranked(converted(t, value, self.dtype), x.rank)
    return t.reshape(t.select(named, number, x), self.shape)


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
    mask = next((index for index in indices if index is not None), None)
    if mask is not None and mask.dtype is DType.BOOL:
        return _put_masked(t, self, indices, values, accumulate)
    rows = rows_of(t, self, indices)
    shape = (*rows.places.shape, rows.values.shape[2])
    source = t.reshape(expanded(t, values, rows.result), shape)
    if accumulate:
        batch, count = rows.places.shape
        index = t.reshape(rows.places, (batch, count, 1))
        put = combined(t, rows.values, 1, index, source, "add")
    else:
        put = written(t, rows.values, rows.places, source)
    moved = t.reshape(put, [self.shape[axis] for axis in rows.order])
    in_place = sorted(range(self.rank), key=rows.order.__getitem__)
    return t.transpose(moved, in_place)


@lowers(aten.put.default, indexes={"index": elements("self")})
def put(t: Tosa, self: Value, index: Value, source: Value, accumulate: bool) -> Value:
    """self [*S], index [*I], source [*I] -> [*S]; an index into self as if it had one
    axis
    """
    flat = t.reshape(self, (math.prod(self.shape),))
    values = t.reshape(source, index.shape)
    return t.reshape(index_put(t, flat, [index], values, accumulate), self.shape)


def _put_masked(
    t: Tosa, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool
) -> Value:
    """x, with ``values`` where the mask, the only index that is not None, is true.

    Added to x if ``accumulate``. ``values`` has to be the same for each true element:
    one number, or one slice of the axes after the mask's. Raises Unsupported otherwise.
    """
    (mask,) = [index for index in indices if index is not None]
    # x has ``before`` axes, then those of the mask, then ``after`` axes, which are
    # those of one slice
    before = indices.index(mask)
    after = x.rank - before - mask.rank
    slice_rank = min(after, values.rank)
    lead = values.shape[: values.rank - slice_rank]
    slice_shape = values.shape[values.rank - slice_rank :]
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
