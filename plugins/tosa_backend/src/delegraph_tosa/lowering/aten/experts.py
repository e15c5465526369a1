"""Mixtures of experts: products of rows with the matrix of their group; histograms.

The number of rows in a group is known at run time only, but TOSA needs every shape
at compile time. If there are few rows, one matrix is gathered for each row. If there
are many, each row is multiplied by all matrices, and one of the results is gathered.
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

    Group e has the rows from ``ends[e - 1]`` (0 for the first group) to ``ends[e]``,
    and may be empty. Rows after the last group give 0.
    """
    t.expect_one_type("a matrix product", x, matrices)
    rows, depth = x.shape
    groups, _, width = matrices.shape
    # a row's group is the number of groups that end before it
    position = converted(t, numbers_along(t, rows, axis=0, rank=2), ends.dtype)
    is_after_end = t.greater_equal(position, t.reshape(ends, (1, groups)))
    group = t.reduce_sum(t.cast(is_after_end, DType.INT32), 1)
    chosen = converted(t, t.minimum(group, groups - 1), DType.INT64)
    if not is_dynamic(rows) and rows <= groups:
        # the gathered matrices are no more than all matrices
        table = t.reshape(matrices, (1, groups, depth * width))
        chosen_matrices = gathered(t, table, t.reshape(chosen, (1, rows)))
        chosen_matrices = t.reshape(chosen_matrices, (rows, depth, width))
        products = t.matmul(t.reshape(x, (rows, 1, depth)), chosen_matrices)
    else:
        weight = t.transpose(matrices, (0, 2, 1))
        weight = t.reshape(weight, (groups * width, depth))
        of_all_groups = affine(t, x, weight, bias=None)
        of_all_groups = t.reshape(of_all_groups, (rows, groups, width))
        # gathered instead of masked and summed: in a sum, NaN and infinity of another
        # group's matrix would have an effect
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
    """[*S] -> [bins]; the number of elements in each of equal bins from ``min`` to
    ``max``; NaN and elements outside are left out
    """
    size = math.prod(self.shape)
    has_limits = min < max
    t.refuse_unless(
        self.dtype is DType.FP32, f"a histogram of {self.dtype} is not lowered"
    )
    t.refuse_unless(
        has_limits or bins == 1,
        "a histogram needs min and max to be lowered: here the data determines its ends",
    )
    t.refuse_unless(
        not exceeds(size * bins, COMPARISONS),
        too_many_comparisons(f"{size} elements in {bins} bins"),
    )
    if not has_limits:
        # the only bin goes from the smallest to the largest element; elements that are
        # not finite raise in eager
        return t.constant(size, DType.FP32, (1,))
    flat = t.reshape(self, (1, size))
    starts = _bin_starts(bins, min, max).reshape(bins, 1)
    start = t.literal(starts.astype(np.float32), DType.FP32)
    is_up_to_max = t.greater_equal(t.constant(max, DType.FP32, (1, 1)), flat)
    is_counted = t.logical_and(t.greater_equal(flat, start), is_up_to_max)
    # the number of elements from the start of each bin on, less that of the next bin
    from_start = t.reduce_sum(t.cast(is_counted, DType.INT32), 1)
    from_start = t.reshape(from_start, (bins,))
    from_next_start: Operand = 0
    if bins > 1:
        all_but_first = t.slice(from_start, (1,), (bins - 1,))
        zero = t.constant(0, DType.INT32, (1,))
        from_next_start = t.concat([all_but_first, zero], 0)
    return t.cast(t.sub(from_start, from_next_start), DType.FP32)


def _bin_starts(bins: int, least: float, most: float) -> np.ndarray[Any, Any]:
    """Return the smallest float32 in each bin, with the rounding errors of eager.

    Eager puts x into the bin floor((x - least) * bins / (most - least)), computed in
    float32; ``most`` is in the last bin. The bin never falls when x grows, so a binary
    search over all float32 between ``least`` and ``most`` finds where it begins.
    """
    low = np.float32(least)
    high = np.float32(most)
    begin = np.full(bins, _float32_rank(low), np.int64)
    end = np.full(bins, _float32_rank(high), np.int64)
    wanted = np.arange(bins)
    while (begin < end).any():
        middle = (begin + end) // 2
        x = _float32_of_rank(middle)
        bin_of_middle = (x - low) * np.float32(bins) / (high - low)
        is_reached = bin_of_middle >= wanted
        begin = np.where(is_reached, begin, middle + 1)
        end = np.where(is_reached, middle, end)
    return _float32_of_rank(begin)


def _float32_rank(number: np.float32) -> int:
    """Return the position of a float32 among all, in ascending order; 0 for zeros."""
    bits = int(number.view(np.int32))
    return bits if bits >= 0 else -(bits & 0x7FFFFFFF)


def _float32_of_rank(rank: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the float32 of each ``_float32_rank``."""
    magnitude = np.abs(rank).astype(np.int32).view(np.float32)
    return np.where(rank < 0, -magnitude, magnitude)
