"""Weights that torchao quantized: integers in the file, floats where they are used.

Operators marked ``fold=False`` stay in the graph and compute the floats at run time.
Folded, the weights would be floats in the file, four or eight times as large.

``import_late`` imports this module if torchao has registered its operators.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ...ir.graph import Value
from ...ir.operators import ARITHMETIC_RIGHT_SHIFT, CAST, LOGICAL_LEFT_SHIFT
from ...ir.types import DType
from ..builder import Tosa
from ..registry import lowers

NIBBLE = (-8, 7)
"""The smallest and the largest integer of 4 bits."""
_FLOAT32 = 6
"""float32 in torchao's operator schemas, the default of ``output_dtype``."""
LEAST_PACKED = 512
"""The fewest weights that are packed two per byte: unpacking takes four operators."""


@lowers(torch.ops.torchao.dequantize_affine.default)
def dequantize_affine(
    t: Tosa,
    input: Value,
    block_size: list[int],
    scale: Value,
    zero_point: Value | None,
    input_dtype: torch.dtype,
    quant_min: Any,
    quant_max: Any,
    output_dtype: Any,
) -> Value:
    """constant int8 [*S], scales and zero points of blocks -> fp32 [*S]

    (input - zero point) * scale. A block has the shape ``block_size``.
    """
    t.refuse_unless(
        input.constant is not None and input.dtype is DType.INT8,
        "it is no weight of int8",
    )
    t.refuse_unless(
        scale.constant is not None and scale.dtype is DType.FP32,
        "its scales are computed at run time",
    )
    is_float32 = output_dtype in (torch.float32, _FLOAT32)
    t.refuse_unless(
        is_float32, f"dequantizing to {output_dtype} is not lowered, only to float32"
    )
    t.refuse_unless(
        zero_point is None or zero_point.constant is not None,
        "its zero points are computed at run time",
    )
    # each axis becomes two, the blocks and the elements of a block; an axis of size 1
    # is left out. Scales have size 1 along the elements of a block. An input [8, 64]
    # with blocks (1, 32) becomes [8, 2, 32], and its scales [8, 2, 1].
    block_shape: list[int] = []
    scale_shape: list[int] = []
    for size, block in zip(input.shape, block_size, strict=True):
        count = size // block
        if count != 1:
            block_shape.append(count)
            scale_shape.append(count)
        if block != 1:
            block_shape.append(block)
            scale_shape.append(1)
    integers = t.reshape(input, block_shape or [1])
    least, most = NIBBLE
    if quant_min is not None and least <= quant_min and quant_max <= most:
        integers = _packed(t, integers)
    numbers = _as_floats(t, integers)
    if zero_point is not None:
        zeros = t.reshape(zero_point, scale_shape or [1])
        if zeros.dtype is DType.INT8:
            zeros = _as_floats(t, zeros)
        numbers = t.sub(numbers, t.cast(zeros, DType.FP32))
    scales = t.reshape(scale, scale_shape or [1])
    return t.reshape(t.mul(numbers, scales), input.shape)


def _as_floats(t: Tosa, integers: Value) -> Value:
    """Cast to fp32 by a CAST that stays in the graph."""
    return t.emit(CAST, (integers,), fold=False, dtype=DType.FP32)


def _packed(t: Tosa, q: Value) -> Value:
    """int8 [*S] from -8 to 7 -> the same integers, unpacked from half as many bytes.

    The low four bits of a byte are an element of the first half, its high bits one of
    the second half. Return ``q`` itself if it is small or cannot be halved, or if the
    target has no integers.
    """
    size = math.prod(q.shape)
    if size % 2 or size < LEAST_PACKED or "INT" not in t.spec.profiles:
        return q
    half = size // 2
    flat = t.reshape(q, (size,))
    first = t.slice(flat, (0,), (half,))
    second = t.slice(flat, (half,), (half,))
    four = t.constant(4, DType.INT8, (1,))
    # folded: these are computed when the file is written
    low_bits = t.bitwise_and(first, 15)
    high_bits = t.emit(LOGICAL_LEFT_SHIFT, (second, four))
    packed = t.bitwise_or(low_bits, high_bits)
    # not folded: these are computed at run time
    raised = t.emit(LOGICAL_LEFT_SHIFT, (packed, four), fold=False)
    first = _shifted_right(t, raised, four)
    second = _shifted_right(t, packed, four)
    unpacked = t.concat([first, second], 0)
    return t.reshape(unpacked, q.shape)


def _shifted_right(t: Tosa, x: Value, bits: Value) -> Value:
    """Return x >> bits, with the sign kept, by an operator that stays in the graph."""
    return t.emit(ARITHMETIC_RIGHT_SHIFT, (x, bits), fold=False, round=False)
