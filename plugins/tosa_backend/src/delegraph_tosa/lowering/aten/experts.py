"""Mixtures of experts: products of rows with their group's matrix, and counts.

How many rows a group has is known at run time only, and TOSA wants every shape
beforehand. So a product is dense: for few rows, each row's matrix is read for it; for
many, each row is multiplied by all matrices and one result is taken.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ...ir.dynamic_sizes import exceeds, is_dynamic
from ...ir.graph import Value
from ...ir.types import DType
from ..builder import Operand, Tosa
from ..promotion import converted
from ..registry import lowers
from ..torch_values.hints import too_many_comparisons
from .index import gathered, numbers_along
from .linear import affine
from .order import COMPARISONS

aten = torch.ops.aten


def grouped_product(t: Tosa, x: Value, matrices: Value, ends: Value) -> Value:
    """x [S,K], matrices [E,K,N], ends [E] -> [S,N]: rows times their group's matrix.

    Group e has the rows from ``ends[e - 1]`` (0 for the first) to ``ends[e]``, and may
    be empty. Rows behind the last group give 0.
    """
    t.expect_one_type("a matrix product", x, matrices)
    rows, depth = x.shape
    groups, _, width = matrices.shape
    position = converted(t, numbers_along(t, rows, axis=0, rank=2), ends.dtype)
    is_behind = t.greater_equal(position, t.reshape(ends, (1, groups)))
    group = t.reduce_sum(t.cast(is_behind, DType.INT32), 1)
    chosen = converted(t, t.minimum(group, groups - 1), DType.INT64)
    if not is_dynamic(rows) and rows <= groups:
        # no more is read than all matrices together are
        table = t.reshape(matrices, (1, groups, depth * width))
        chosen_matrices = gathered(t, table, t.reshape(chosen, (1, rows)))
        chosen_matrices = t.reshape(chosen_matrices, (rows, depth, width))
        products = t.matmul(t.reshape(x, (rows, 1, depth)), chosen_matrices)
    else:
        weight = t.transpose(matrices, (0, 2, 1))
        weight = t.reshape(weight, (groups * width, depth))
        of_all_groups = affine(t, x, weight, bias=None)
        of_all_groups = t.reshape(of_all_groups, (rows, groups, width))
        # taken, not masked and summed: NaN and infinity of another group's matrix do
        # not come in
        products = gathered(t, of_all_groups, chosen)
    y = t.reshape(products, (rows, width))
    has_group = t.greater(groups, group)
    return t.select(has_group, y, t.like(0.0, y))


@lowers(aten._grouped_mm.default)
def _grouped_mm(
    t: Tosa,
    self: Value,
    mat2: Value,
    offs: Value | None,
    bias: Value | None,
    out_dtype: torch.dtype | None,
) -> Value:
    """[S,K], mat2 [E,K,N], offs [E] -> [S,N]; without ``offs`` [E,S,K], mat2 [E,K,N] ->
    [E,S,N]
    """
    t.refuse_unless(
        bias is None and out_dtype is None,
        "a grouped product with a bias or another dtype is not lowered",
    )
    if offs is None and self.rank == mat2.rank == 3:
        t.expect_one_type("a matrix product", self, mat2)
        return t.matmul(self, mat2)
    t.refuse_unless(
        offs is not None and self.rank == 2 and mat2.rank == 3,
        "a grouped product is lowered if its rows are in groups, not if its columns or"
        " its summed axis are",
    )
    assert offs is not None
    return grouped_product(t, self, mat2, offs)


@lowers(aten.histc.default)
def histc(t: Tosa, self: Value, bins: int, min: float, max: float) -> Value:
    """[*S] -> [bins]; how many elements each bin from ``min`` to ``max`` has; NaN and
    others outside are left out
    """
    size = math.prod(self.shape)
    t.refuse_unless(
        self.dtype is DType.FP32, f"a histogram of {self.dtype} is not lowered"
    )
    t.refuse_unless(
        min < max or bins == 1,
        "a histogram needs min and max to be lowered: here the data determines its ends",
    )
    t.refuse_unless(
        not exceeds(size * bins, COMPARISONS),
        too_many_comparisons(f"{size} elements in {bins} bins"),
    )
    if not min < max:
        # one bin between the least and the largest element has all of them, and others
        # than finite ones raise in eager
        return t.constant(size, DType.FP32, (1,))
    flat = t.reshape(self, (1, size))
    beginnings = _beginnings(bins, min, max).reshape(bins, 1)
    begins = t.literal(beginnings.astype(np.float32), DType.FP32)
    is_inside = t.greater_equal(t.constant(max, DType.FP32, (1, 1)), flat)
    is_reached = t.logical_and(t.greater_equal(flat, begins), is_inside)
    count = t.reduce_sum(t.cast(is_reached, DType.INT32), 1)
    count = t.reshape(count, (bins,))
    # how many reach a bin's beginning, less how many reach the next one's
    following: Operand = 0
    if bins > 1:
        next_counts = t.slice(count, (1,), (bins - 1,))
        following = t.concat([next_counts, t.constant(0, DType.INT32, (1,))], 0)
    return t.cast(t.sub(count, following), DType.FP32)


def _beginnings(bins: int, least: float, most: float) -> np.ndarray[Any, Any]:
    """Return the smallest float32 of each bin, as eager rounds it.

    A bin is floor((x - least) * bins / (most - least)). The last bin has ``most`` as
    well. Found by halving: the bin does not fall where x grows.
    """
    low = np.float32(least)
    high = np.float32(most)
    begin = np.full(bins, _order(low), np.int64)
    end = np.full(bins, _order(high), np.int64)
    wanted = np.arange(bins)
    while (begin < end).any():
        middle = (begin + end) // 2
        bin_of_middle = (_float(middle) - low) * np.float32(bins) / (high - low)
        reaches = bin_of_middle >= wanted
        begin = np.where(reaches, begin, middle + 1)
        end = np.where(reaches, middle, end)
    return _float(begin)


def _order(number: np.float32) -> int:
    """Return the rank of a float32 among all: neighbours differ by 1, zeros are 0."""
    bits = int(number.view(np.int32))
    return bits if bits >= 0 else -(bits & 0x7FFFFFFF)


def _float(order: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the float32 at each place of ``_order``."""
    size = np.abs(order).astype(np.int32).view(np.float32)
    return np.where(order < 0, -size, size)
