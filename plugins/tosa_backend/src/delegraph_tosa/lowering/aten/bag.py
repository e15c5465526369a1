"""Embedding bags: the sum, mean or maximum of selected rows of a table.

Also ``embedding_renorm``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ...ir.dynamic_sizes import exceeds
from ...ir.graph import Value
from ...ir.types import DType
from ..builder import Tosa
from ..promotion import converted
from ..ranges.index_bounds import beginnings, rows
from ..registry import lowers
from .distance import norm_along
from .index import gathered, numbers_along
from .scatter import index_matches

aten = torch.ops.aten
inf = math.inf

SUM = 0
MEAN = 1
MAX = 2
INDEXES = {"indices": rows("weight"), "offsets": beginnings("indices")}
"""Accepted indices: rows of the table, and positions in ``indices`` as offsets."""
MEMBERS = 1 << 22
"""The most elements of the largest intermediate tensor: bags * indices * width."""

Results = tuple[Value, None, None, None]
"""The bags, then None three times: tensors for the backward pass are not lowered."""


class Bags(NamedTuple):
    """The arguments of an embedding bag with B bags and a table ``weight`` [K,C].

    Bag b combines the table's rows ``indices[offsets[b] : offsets[b + 1]]`` by ``mode``,
    which is SUM, MEAN or MAX. ``indices`` and ``per_sample_weights`` are [W].
    ``offsets`` are [B], or [B+1] with ``include_last_offset``. Indices equal to
    ``padding`` are left out; None is no padding.
    """

    weight: Value
    indices: Value
    offsets: Value
    mode: int
    per_sample_weights: Value | None
    include_last_offset: bool
    padding: int | None


def _bagged(t: Tosa, bags: Bags) -> Results:
    """Return [B,C]: the sum, mean or maximum of the rows of each bag.

    Each bag is computed from the rows of all indices, masked by membership. Raises
    Unsupported for more elements than MEMBERS.
    """
    (index_count,) = bags.indices.shape
    rows, width = bags.weight.shape
    is_member = _members(t, bags.offsets, index_count, bags.include_last_offset)
    bag_count = is_member.shape[0]
    t.refuse_unless(
        not exceeds(bag_count * index_count * width, MEMBERS),
        f"{bag_count} bags of {index_count} rows of {width} take too many comparisons",
    )
    if bags.padding is not None:
        is_kept = t.logical_not(t.equal(bags.indices, bags.padding))
        is_kept = t.reshape(is_kept, (1, index_count, 1))
        is_member = t.logical_and(is_member, is_kept)
    table = t.reshape(bags.weight, (1, rows, width))
    selected = gathered(t, table, t.reshape(bags.indices, (1, index_count)))
    selected = converted(t, selected, DType.FP32)
    if bags.per_sample_weights is not None:
        factors = converted(t, bags.per_sample_weights, DType.FP32)
        selected = t.mul(selected, t.reshape(factors, (1, index_count, 1)))
    y = _combined_bags(t, is_member, selected, bags.mode)
    y = converted(t, t.reshape(y, (bag_count, width)), bags.weight.dtype)
    return y, None, None, None


def _members(t: Tosa, offsets: Value, count: int, include_last_offset: bool) -> Value:
    """Return bool [B,W,1]: whether index w belongs to bag b. W is ``count``.

    A bag ends where the next one begins.
    """
    bags = offsets.shape[0] - include_last_offset
    begin = t.slice(offsets, (0,), (bags,))
    # the last bag ends after all indices, unless the offsets have its end too
    after_last = t.constant(count, offsets.dtype, (1,))
    end = t.slice(t.concat([offsets, after_last], 0), (1,), (bags,))
    position = converted(t, numbers_along(t, count, axis=1, rank=3), offsets.dtype)
    begin = t.reshape(begin, (bags, 1, 1))
    end = t.reshape(end, (bags, 1, 1))
    is_begun = t.greater_equal(position, begin)
    return t.logical_and(is_begun, t.greater(end, position))


def _combined_bags(t: Tosa, is_member: Value, rows: Value, mode: int) -> Value:
    """is_member [B,W,1], rows [1,W,C] -> [B,1,C]: sum, mean or maximum of each bag.

    An empty bag gives 0.
    """
    if mode == MAX:
        largest = t.reduce_max(t.select(is_member, rows, -inf), 1)
        has_members = t.reduce_any(is_member, 1)
        return t.select(has_members, largest, 0.0)
    total = t.reduce_sum(t.select(is_member, rows, 0.0), 1)
    if mode == SUM:
        return total
    count = t.reduce_sum(converted(t, is_member, DType.FP32), 1)
    # an empty bag is divided by 1
    return t.mul(total, t.reciprocal(t.maximum(count, 1.0)))


@lowers(aten.embedding_renorm.default, indexes={"indices": rows("self")})
def embedding_renorm(
    t: Tosa, self: Value, indices: Value, max_norm: float, norm_type: float
) -> Value:
    """self [K,C], indices [*S] -> [K,C]; scales the indexed rows with a norm above
    ``max_norm`` to this norm
    """
    count = math.prod(indices.shape)
    norm = norm_along(t, self, 1, norm_type)
    # torch adds the same 1e-7
    scale = t.mul(t.reciprocal(t.add(norm, 1e-7)), max_norm)
    matches = index_matches(t, self, 0, t.reshape(indices, (count, 1)))
    is_indexed = t.reshape(t.reduce_any(matches, 1), (self.shape[0], 1))
    is_too_long = t.logical_and(is_indexed, t.greater(norm, max_norm))
    return t.select(is_too_long, t.mul(self, scale), self)


@lowers(aten.embedding_bag.padding_idx, aten.embedding_bag.default, indexes=INDEXES)
def embedding_bag(
    t: Tosa,
    weight: Value,
    indices: Value,
    offsets: Value,
    mode: int,
    per_sample_weights: Value | None,
    include_last_offset: bool,
    padding_idx: int | None = None,
) -> Results:
    """weight [K,C], indices [W], offsets [B], weights [W] -> [B,C]"""
    if padding_idx is not None:
        padding_idx = padding_idx % weight.shape[0]
    bags = Bags(
        weight,
        indices,
        offsets,
        mode,
        per_sample_weights,
        include_last_offset,
        padding_idx,
    )
    return _bagged(t, bags)


@lowers(
    aten._embedding_bag.default,
    aten._embedding_bag_forward_only.default,
    indexes=INDEXES,
)
def _embedding_bag(
    t: Tosa,
    weight: Value,
    indices: Value,
    offsets: Value,
    mode: int,
    per_sample_weights: Value | None,
    include_last_offset: bool,
    padding_idx: int,
) -> Results:
    """weight [K,C], indices [W], offsets [B], weights [W] -> [B,C]; a negative
    ``padding_idx`` is no padding
    """
    bags = Bags(
        weight,
        indices,
        offsets,
        mode,
        per_sample_weights,
        include_last_offset,
        None if padding_idx < 0 else padding_idx,
    )
    return _bagged(t, bags)
