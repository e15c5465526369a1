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
from .data_movement import PUTS, float_operands, where, written
from .sums import addend, aligned, centred, times

aten = torch.ops.aten


def _added_at_indices(overload: Any, t: Tosa, *arguments: Any, count: int) -> Lazy:
    """Apply the float rule of ``overload`` to int32 operands with one scale for all.

    In this scale, the sum at any position fits. At most ``count`` values are added to
    the element at one position.
    """
    operands = float_operands(arguments)
    largest = max(reach(t, operand, -math.inf) for operand in operands.values())
    most = (count + 1) * largest
    t.refuse_unless(most < math.inf, "one of its operands has no known limits")
    quantized = {
        position: addend(t, operand)
        for position, operand in operands.items()
        if isinstance(operand, Lazy)
    }
    _, step_of_operands = aligned(t, list(quantized.values()))
    step = max(most / 2.0**BITS, step_of_operands)
    common = Quantization(step, 0, -(1 << BITS), 1 << BITS, DType.INT32)
    integers = list(arguments)
    for position, operand in operands.items():
        if position in quantized:
            integers[position] = centred(t, quantized[position], step)
        else:
            # floats: a constant, or computed on a target with floats
            integers[position] = integer(t, operand, common)
    float_rule = lowering_of(overload)
    result: Value = float_rule(t, *integers)
    # a sum has one bit more than its terms
    result.range = -(1 << BITS + 1), 1 << BITS + 1
    return Scaled(result, Scale(step))


@lowers(aten.scatter_add.default, on=Lazy)
def scatter_add(t: Tosa, self: Value, dim: int, index: Value, src: Value) -> Lazy:
    """self [*A,K,*B], index [*A',W,*B'], src [*A',W,*B'] -> [*A,K,*B]"""
    overload = aten.scatter_add.default
    count = index.shape[dim] if index.rank else 1
    return _added_at_indices(overload, t, self, dim, index, src, count=count)


@lowers(aten.index_add.default, on=Lazy)
def index_add(
    t: Tosa, self: Value, dim: int, index: Value, source: Value, alpha: float
) -> Lazy:
    """self [*A,K,*B], index [W], source [*A,W,*B] -> [*A,K,*B]"""
    values = source
    if alpha != 1:
        t.refuse_unless(isinstance(source, Lazy), "its constant source has a factor")
        values = times(t, source, alpha)
    overload = aten.index_add.default
    count = math.prod(index.shape)
    # ``values`` are multiplied by alpha already: the float rule gets a factor of 1
    return _added_at_indices(overload, t, self, dim, index, values, 1, count=count)


def _put_at_indices(
    overload: Any, t: Tosa, self: Value, indices: Any, values: Value, accumulate: bool
) -> Value:
    """self [*S], several indices [*I] that broadcast, values [*A,*I,*B] -> [*S]"""
    if not accumulate:
        return written(overload, t, self, indices, values, accumulate)
    shapes = [index.shape for index in indices if index is not None]
    count = math.prod(np.broadcast_shapes(*shapes))
    arguments = (self, indices, values, accumulate)
    return _added_at_indices(overload, t, *arguments, count=count)


for overload in PUTS:
    lowers(overload, on=Lazy)(partial(_put_at_indices, overload))


def _filled_at_indices(
    overload: Any, t: Tosa, self: Lazy, dim: int, index: Value, value: float
) -> Value:
    """self [*A,K,*B], index -> [*A,K,*B] with ``value`` at the indexed positions.

    The float rule of ``overload``, applied to a tensor of False with the value True,
    gives the mask for a SELECT.
    """
    all_false = t.constant(False, DType.BOOL, self.shape)
    float_rule = lowering_of(overload)
    mask = float_rule(t, all_false, dim, index, True)
    return where(t, mask, value, self)


for overload in (aten.scatter.value, aten.index_fill.int_Scalar):
    lowers(overload, on=Lazy)(partial(_filled_at_indices, overload))
