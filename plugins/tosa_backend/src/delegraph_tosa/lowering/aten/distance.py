"""Distances between vectors."""

from __future__ import annotations

import math

import numpy as np
import torch

from ...ir.graph import Value
from ...ir.types import DType
from ..builder import Tosa
from ..geometry.positions import picked
from ..promotion import converted
from ..registry import lowers
from .elementwise import sqrt
from .power import fixed_power

aten = torch.ops.aten


def norm_along(t: Tosa, x: Value, axis: int, p: float) -> Value:
    """x [*A,N,*B] -> [*A,1,*B], the p-norm along ``axis``.

    It is sum(|x| ** p) ** (1 / p); for p = 0, the number of elements that are not 0;
    for an infinite p, the largest magnitude.
    """
    magnitude = t.abs(x)
    if math.isinf(p):
        return t.reduce_max(magnitude, axis)
    if p == 0:
        is_zero = t.equal(x, 0)
        return t.reduce_sum(t.select(is_zero, t.like(0, x), 1), axis)
    if p == 1:
        return t.reduce_sum(magnitude, axis)
    if p == 2:
        return sqrt(t, t.reduce_sum(t.mul(x, x), axis))
    powers = fixed_power(t, magnitude, p)
    total = t.reduce_sum(powers, axis)
    return fixed_power(t, total, 1 / p)


@lowers(aten.cdist.default, aten._cdist_forward.default)
def cdist(t: Tosa, x1: Value, x2: Value, p: float) -> Value:
    """x1 [*B,P,M], x2 [*B,R,M] -> [*B,P,R]; holds all P * R * M differences in memory,
    so it suits small inputs
    """
    *lead, row_count, width = x1.shape
    rows = t.reshape(x1, (*lead, row_count, 1, width))
    *lead, column_count, width = x2.shape
    columns = t.reshape(x2, (*lead, 1, column_count, width))
    rows = converted(t, rows, DType.FP32)
    columns = converted(t, columns, DType.FP32)
    differences = t.sub(rows, columns)
    norms = norm_along(t, differences, differences.rank - 1, p)
    distances = t.reshape(norms, differences.shape[:-1])
    return converted(t, distances, x1.dtype)


@lowers(aten.pdist.default, aten._pdist_forward.default)
def pdist(t: Tosa, self: Value, p: float) -> Value:
    """[N,M] -> [N * (N - 1) / 2], the distances of each row from the following ones"""
    first, second = np.triu_indices(self.shape[0], 1)
    first_rows = picked(t, self, 0, first)
    second_rows = picked(t, self, 0, second)
    differences = t.sub(first_rows, second_rows)
    norms = norm_along(t, differences, 1, p)
    return t.reshape(norms, (len(first),))
