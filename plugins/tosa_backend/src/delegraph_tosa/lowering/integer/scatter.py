"""Adds and writes quantized values at indices: applies the float rules to int32."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch

from ...ir.graph import Value
from ...ir.types import DType
from ..builder import Tosa
from ..lazy.lazy_values import BITS, Lazy, Scaled, integer, reach
from ..lazy.quantization import Quantization, Scale
from ..registry import lowering_of, lowers
from .data_movement import PUTS, where, written
from .sums import addend, aligned, centred, times

aten = torch.ops.aten


def _added_at_indices(overload: Any, t: Tosa, *arguments: Any, count: int) -> Lazy:
    """Return the float rule of ``overload`` on int32 with one scale for all.

    In this scale, the sum at any position fits. ``count`` is the largest number of
    values that are added at one position; the element that is there comes on top.
    """
    # the operands with numbers to add: lazy values, and floats, which ``integer``
    # converts
    positions = [
        k
        for k, a in enumerate(arguments)
        if isinstance(a, Value) and a.dtype is DType.FP32
    ]
    quantized = {
        k: addend(t, arguments[k]) for k in positions if isinstance(arguments[k], Lazy)
    }
    most = (count + 1) * max(reach(t, arguments[k], -math.inf) for k in positions)
    t.require(most < math.inf, "one of its operands has no known limits")
    step = max(most / 2.0**BITS, aligned(t, list(quantized.values()))[1])
    common = Quantization(step, 0, -(1 << BITS), 1 << BITS, DType.INT32)
    parts = {
        k: (
            centred(t, quantized[k], step)
            if k in quantized
            else integer(t, arguments[k], common)
        )
        for k in positions
    }
    result: Value = lowering_of(overload)(
        t, *[parts.get(k, a) for k, a in enumerate(arguments)]
    )
    result.range = -(1 << BITS + 1), 1 << BITS + 1
    return Scaled(result, Scale(step))


@lowers(aten.scatter_add.default, on=Lazy)
def scatter_add(t: Tosa, self: Value, dim: int, index: Value, src: Value) -> Lazy:
    """self [*A,K,*B], index [*A',W,*B'], src [*A',W,*B'] -> [*A,K,*B]"""
    count = index.shape[dim] if index.rank else 1
    return _added_at_indices(
        aten.scatter_add.default, t, self, dim, index, src, count=count
    )


@lowers(aten.index_add.default, on=Lazy)
def index_add(
    t: Tosa, self: Value, dim: int, index: Value, source: Value, alpha: float
) -> Lazy:
    """self [*A,K,*B], index [W], source [*A,W,*B] -> [*A,K,*B]"""
    values = (
        times(t, source, alpha) if isinstance(source, Lazy) and alpha != 1 else source
    )
    t.require(values is not source or alpha == 1, "its constant source has a factor")
    return _added_at_indices(
        aten.index_add.default,
        t,
        self,
        dim,
        index,
        values,
        1,
        count=math.prod(index.shape),
    )


def _put_at_indices(
    overload: Any, t: Tosa, self: Value, indices: Any, values: Value, accumulate: bool
) -> Value:
    """self [*S], several indices [*I] that broadcast, values [*A,*I,*B] -> [*S]"""
    if not accumulate:
        return written(overload, t, self, indices, values, accumulate)
    count = math.prod(
        np.broadcast_shapes(*[index.shape for index in indices if index is not None])
    )
    return _added_at_indices(
        overload, t, self, indices, values, accumulate, count=count
    )


for overload in PUTS:
    lowers(overload, on=Lazy)(partial(_put_at_indices, overload))


def _filled_at_indices(
    overload: Any, t: Tosa, self: Lazy, dim: int, index: Value, value: float
) -> Value:
    """self [*A,K,*B], index -> [*A,K,*B] with ``value`` at the indexed positions

    The float rule of ``overload``, applied to a tensor of False with the value True,
    gives the mask for a SELECT.
    """
    named = lowering_of(overload)(
        t, t.constant(False, DType.BOOL, self.shape), dim, index, True
    )
    return where(t, named, value, self)


for overload in (aten.scatter.value, aten.index_fill.int_Scalar):
    lowers(overload, on=Lazy)(partial(_filled_at_indices, overload))
