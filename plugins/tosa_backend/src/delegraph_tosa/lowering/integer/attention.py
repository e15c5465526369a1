"""Scaled dot-product attention in integers: MATMULs of int8, and between them exp in 32 bits.

The weights of the second product are exp(score - the largest score), and its rows are divided by their sum afterwards:
weights that were divided before would use few of their bits. They have up to 15 bits, so that product is two.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from ...ir.graph import Value, literal
from ...ir.types import DType
from ..aten.attention import repeated, transposed
from ..aten.linear import batched_product
from ..builder import Tosa
from ..lazy import Lazy, Scaled, operand
from ..quantization import Scale
from ..registry import lowers_quantized
from .fixed_point import FRACTION, exp_of, reciprocal
from .products import Accumulating

aten = torch.ops.aten
HIDDEN = -(2**30)
"""A score that is hidden, below all others."""


@lowers_quantized(aten.scaled_dot_product_attention.default)
def scaled_dot_product_attention(
    t: Tosa,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Lazy:
    """query [*B,L,E], key [*B,S,E], value [*B,S,V], mask bool [*B,L,S] -> [*B,L,V]; a row that sees nothing is 0"""
    t.require(dropout_p == 0, "it has dropout")
    t.require(attn_mask is None or attn_mask.dtype is DType.BOOL, "its mask is added, which floats do")
    q, k, v = operand(t, query, "the query"), operand(t, key, "the key"), operand(t, value, "the value")
    t.require(q.q.dtype is k.q.dtype is v.q.dtype is DType.INT8, "it is lowered on int8 only")
    keys, values = (repeated(t, x.q, q.q) if enable_gqa else x.q for x in (k, v))
    inside = Accumulating(t, DType.INT32, q.zero_point, k.zero_point)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = Scaled(batched_product(inside, q.q, transposed(t, keys)), q.scale.times(k.scale).over(1 / factor))
    seen = _causal(*scores.shape[-2:]) if is_causal else attn_mask
    weights = _weights(t, scores, seen)
    total = t.reduce_sum(weights, weights.rank - 1)
    return _divided(t, _weighted(t, weights, values, v.zero_point), total, v.scale)


def _causal(rows: int, columns: int) -> Value:
    """The constant [L,S]: each position sees itself and what comes before it."""
    return literal(np.tri(rows, columns, dtype=np.bool_), DType.BOOL, np.bool_)


def _weights(t: Tosa, scores: Scaled, seen: Value | None) -> Value:
    """scores int32 [*B,L,S] -> exp(score - the largest of its row), int32, of which a row's sum is below 2**22"""
    known = scores.q if seen is None else t.select(seen, scores.q, HIDDEN)
    distance = Scaled(t.sub(known, t.reduce_max(known, known.rank - 1)), scores.scale)
    bits = min(15, 22 - math.ceil(math.log2(scores.shape[-1])))
    t.require(bits >= 8, f"attention to {scores.shape[-1]} positions has too large a sum")
    weights = exp_of(t, distance, bits)
    return weights if seen is None else t.select(seen, weights, 0)


def _weighted(t: Tosa, weights: Value, values: Value, zero_point: int) -> Value:
    """weights [*B,L,S] of 15 bits, values int8 [*B,S,V] -> [*B,L,V]: the products by high and by low bits"""
    inside = Accumulating(t, DType.INT32, 0, zero_point)
    high = t.right_shift(t.add(weights, 128), 8)
    low = t.sub(weights, t.left_shift(high, 8))
    sums = [batched_product(inside, t.cast(part, DType.INT8), values) for part in (high, low)]
    return t.add(t.left_shift(sums[0], 8), sums[1])


def _divided(t: Tosa, y: Value, total: Value, scale: Scale) -> Lazy:
    """y / total, where |y| <= 255 * total: the shift that ``reciprocal`` wants would be 8 bits too many."""
    inverse = reciprocal(t, t.maximum(total, 1))
    shifted = t.left_shift(y, t.maximum(t.sub(inverse.shift, 8), 0))
    return Scaled(t.mul(shifted, inverse.mantissa, shift=31), scale.over(2.0 ** (FRACTION - 8)))
