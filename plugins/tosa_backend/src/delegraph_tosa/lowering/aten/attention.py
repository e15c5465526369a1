"""Scaled dot-product attention: MATMUL, mask, softmax, MATMUL."""

from __future__ import annotations

import math

import torch

from ...ir.dynamic_sizes import is_dynamic
from ...ir.graph import Value
from ...ir.types import DType
from ..builder import Tosa
from ..promotion import converted
from ..registry import lowers
from .comparison import lower_triangle
from .linear import batched_product
from .reduce import softmax_of

aten = torch.ops.aten
inf = math.inf


@lowers(aten.scaled_dot_product_attention.default)
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
) -> Value:
    """query [*B,L,E], key [*B,S,E], value [*B,S,V], mask [*B,L,S] -> [*B,L,V]; the
    softmax is computed in fp32

    As in torch, the result is 0 for a query if the mask hides every key.
    """
    t.refuse_unless(
        dropout_p == 0,
        f"attention with dropout of {dropout_p} draws random numbers, which TOSA"
        " cannot",
    )
    if enable_gqa:
        key = repeated_heads(t, key, query)
        value = repeated_heads(t, value, query)
    if scale is None:
        width = query.shape[-1]
        # math.sqrt takes no width that is known at run time only
        root = width**0.5 if is_dynamic(width) else math.sqrt(width)
        scale = 1 / root
    scaled_query = t.mul(query, scale)
    scores = batched_product(t, scaled_query, transposed(t, key))
    scores = converted(t, scores, DType.FP32)
    if is_causal:
        queries, keys = scores.shape[-2:]
        mask = _causal_mask(t, queries, keys)
        scores = t.add(scores, t.ranked(mask, scores.rank))
    if attn_mask is None:
        weights = softmax_of(t, scores, -1)
    else:
        weights = _masked_softmax(t, scores, attn_mask)
    weights = converted(t, weights, query.dtype)
    return batched_product(t, weights, value)


def transposed(t: Tosa, x: Value) -> Value:
    """[*B,S,E] -> [*B,E,S]"""
    batch = range(x.rank - 2)
    return t.transpose(x, (*batch, x.rank - 1, x.rank - 2))


def repeated_heads(t: Tosa, x: Value, query: Value) -> Value:
    """x [*B,H',S,E], query [*B,H,L,E] -> [*B,H,S,E]: each head repeated H / H' times.

    In grouped-query attention, H / H' neighbouring heads of the query share one head of
    the key and value.
    """
    *batch, heads, length, width = x.shape
    times = query.shape[-3] // heads
    of_one_head = t.reshape(x, (*batch, heads, 1, length, width))
    multiples = [1] * of_one_head.rank
    multiples[-3] = times
    copies = t.tile(of_one_head, multiples)
    return t.reshape(copies, (*batch, heads * times, length, width))


def _causal_mask(t: Tosa, queries: int, keys: int) -> Value:
    """Return a mask fp32 [queries,keys]: -inf where the key follows the query, else 0.

    The first key is never hidden, so no row is all -inf: its softmax would be NaN.
    """
    is_visible = lower_triangle(t, (queries, keys))
    hidden = t.constant(-inf, DType.FP32, (1, 1))
    return t.select(is_visible, 0.0, hidden)


def _masked_softmax(t: Tosa, scores: Value, mask: Value) -> Value:
    """Return the softmax over keys of masked scores fp32 [*B,L,S].

    The mask is bool (False hides a key) or float (added to scores). A row in which
    every score is -inf gives 0.
    """
    if mask.dtype is DType.BOOL:
        hidden = t.constant(-inf, DType.FP32, (1,) * mask.rank)
        mask = t.select(mask, 0.0, hidden)
    scores = t.add(scores, converted(t, mask, DType.FP32))
    last_axis = scores.rank - 1
    largest = t.reduce_max(scores, last_axis)
    all_hidden = t.equal(largest, -inf)
    # in a row of -inf, scores - largest would be NaN, and dividing by the total 0 / 0
    offset = t.select(all_hidden, 0.0, largest)
    exponentials = t.exp(t.sub(scores, offset))
    total = t.reduce_sum(exponentials, last_axis)
    divisor = t.select(all_hidden, 1.0, total)
    return t.mul(exponentials, t.reciprocal(divisor))
