"""Computes scaled dot-product attention in integers.

The product of query and key are the scores, int32. The weights of the values are
exp(score - largest score of the row), with 15 bits for int8 and 23 bits for int16. A
MATMUL takes weights of the type of the values only. So it is applied twice, to the high
and to the low bits of the weights. The result is divided by the sum of the row's
weights after the product: divided weights would be small and use few of their bits.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ...ir.dynamic_sizes import greatest
from ...ir.graph import Value
from ...ir.types import DType
from ..aten.attention import repeated_heads, transposed
from ..aten.comparison import lower_triangle
from ..aten.linear import batched_product
from ..builder import Tosa
from ..lazy.lazy_values import Joined, Lazy, Moved, Scaled, operand, rescale
from ..lazy.quantization import Scale
from ..ranges.value_ranges import range_of
from ..registry import lowers
from .fixed_point import FRACTION, exp_of, reciprocal
from .products import WIDE, Accumulating
from .softmax import logits
from .softmax_int16 import FINER, SHARE, STEP, int16_shares, takes_int16_softmax
from .sums import Shifted

aten = torch.ops.aten
HIDDEN = -(2**30)
"""The score of a hidden key, below all other scores."""
LOWER = 8
"""How many low bits of a weight go into the second of the two products."""
ONCE = frozenset({"u55"})
"""Devices on which a MATMUL takes as long as ten other operators.

There, weights have 8 bits, so that one product is enough.
"""
FEW = 64
"""The most positions for 8-bit weights, which keep results within a step."""


class Widths(NamedTuple):
    """The bits of a value, of a weight, and of the sum of the weights of a row."""

    value: int
    weight: int
    total: int

    def of_weights(self, t: Tosa, count: int) -> int:
        """Return how many bits weights may have if ``count`` of them are summed.

        Raises Unsupported if weights would be too coarse: if they would have over 7
        bits fewer than ``weight``.
        """
        bits = min(self.weight, self.total - math.ceil(math.log2(count)))
        t.refuse_unless(
            bits >= self.weight - 7,
            f"attention to up to {count} positions has too large a sum",
        )
        return bits

    def lost(self, bits: int, count: int) -> int:
        """Return how many low bits a sum of products loses to fit into int32.

        It has ``count`` products of a value and a weight of ``bits`` bits.
        """
        return max(0, bits + math.ceil(math.log2(count)) + self.value - 30)


WIDTHS = {DType.INT8: Widths(8, 15, 22), DType.INT16: Widths(15, 23, 30)}
"""Type of the operands -> the widths."""


@lowers(aten.scaled_dot_product_attention.default, on=Lazy)
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
    """query [*B,L,E], key [*B,S,E], value [*B,S,V], mask [*B,L,S] -> [*B,L,V]; 0 if a
    mask hides every key
    """
    t.refuse_unless(dropout_p == 0, "it has dropout")
    q = operand(t, query, "the query")
    k = operand(t, key, "the key")
    v = operand(t, value, "the value")
    dtype = q.q.dtype
    t.refuse_unless(
        dtype is k.q.dtype is v.q.dtype,
        "its operands are quantized to different types",
    )
    if enable_gqa:
        k = k.with_integers(repeated_heads(t, k.q, q.q))
        v = v.with_integers(repeated_heads(t, v.q, q.q))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    t.refuse_unless(factor > 0, f"a scale of {factor} is not positive")
    scores = _scores(t, q, k, factor)
    count = greatest(scores.shape[-1])
    bits = WIDTHS[dtype].of_weights(t, count)
    mask = lower_triangle(t, scores.shape) if is_causal else attn_mask
    if dtype is DType.INT8 and takes_int16_softmax(t, scores, scores.rank - 1):
        # hidden keys get the lowest score: ``int16_shares`` leaves them out, and HIDDEN
        # would not fit into its RESCALEs
        lowest, _ = range_of(scores.q)
        masked, seen = _masked(t, scores, mask, hidden=max(lowest, HIDDEN))
        return _by_int16_shares(t, masked, seen, v)
    masked, seen = _masked(t, scores, mask)
    weights = _weights(t, masked, seen, bits)
    if dtype is DType.INT8 and count <= FEW and ONCE & t.spec.devices:
        return _in_one_product(t, weights, bits, v)
    return _in_two_products(t, weights, bits, count, v)


def _scores(t: Tosa, query: Scaled, key: Scaled, factor: float) -> Scaled:
    """Return query @ key.T * factor as integers; the factor only changes their scale."""
    sums = WIDE[query.q.dtype]
    builder = Accumulating(t, sums, query.zero_point, key.zero_point)
    products = batched_product(builder, query.q, transposed(t, key.q))
    scale = query.scale.times(key.scale).times(builder.unit)
    return Scaled(products, scale.over(1 / factor))


def _by_int16_shares(
    t: Tosa, scores: Scaled, seen: Value | None, values: Scaled
) -> Lazy:
    """Return the result by one product of the ``values`` and int16 weights.

    These weights are already divided by the sums of their rows.
    """
    fine = STEP / 2**FINER
    wide = Scaled(rescale(t, scores, fine, 0, DType.INT32), Scale(fine))
    wide_shares = int16_shares(t, wide, scores.rank - 1, seen)
    shares = rescale(t, wide_shares, 2.0**-SHARE, 0, DType.INT16)
    shares.range = (0, 2**SHARE - 1)
    unscaled = Scaled(values.q, Scale(1.0), values.zero_point)
    v = rescale(t, unscaled, 1.0, 0, DType.INT16)
    builder = Accumulating(t, DType.INT48, left=0, right=0)
    y = batched_product(builder, shares, v)
    return Scaled(y, values.scale.times(builder.unit).over(2.0**SHARE))


def _masked(
    t: Tosa, scores: Scaled, mask: Value | None, hidden: int = HIDDEN
) -> tuple[Scaled, Value | None]:
    """Return the masked scores, and bool [*B,L,S] that is false for hidden keys.

    The second is None if no key is hidden. A bool mask gives keys for which it is false
    the score ``hidden``. Any other mask, a float or lazy value, is added to the scores.
    """
    if mask is None:
        return scores, None
    if mask.dtype is DType.BOOL:
        return Scaled(t.select(mask, scores.q, hidden), scores.scale), mask
    masked = logits(t, Shifted(scores, mask, scores.shape))
    return masked, _above_minus_infinity(t, mask)


def _above_minus_infinity(t: Tosa, mask: Value) -> Value | None:
    """Return bool that is false where the ``mask``, added to scores, is -inf.

    Returns None if it is -inf nowhere. Quantized numbers are finite, so only computed
    floats and constants can be -inf.
    """
    if isinstance(mask, Joined):
        parts = [_above_minus_infinity(t, part) for part in mask.parts]
        if all(part is None for part in parts):
            return None
        true = t.constant(1, DType.BOOL, (1,) * mask.rank)
        return mask.join(t, [true if part is None else part for part in parts])
    if isinstance(mask, Moved):
        above = _above_minus_infinity(t, mask.of)
        return None if above is None else mask.move(t, above)
    if isinstance(mask, Lazy):
        return None
    return t.greater(mask, -math.inf)


def _weights(t: Tosa, scores: Scaled, seen: Value | None, bits: int) -> Value:
    """scores int32 [*B,L,S] -> exp(score - largest of its row), int32 of ``bits`` bits.

    The weight of a key is 0 where ``seen``, bool [*B,L,S], is false for it; a ``seen``
    of None hides no key.
    """
    largest = t.reduce_max(scores.q, scores.rank - 1)
    distance = Scaled(t.sub(scores.q, largest), scores.scale)
    weights = exp_of(t, distance, bits)
    if seen is None:
        return weights
    return t.select(seen, weights, 0)


def _in_two_products(
    t: Tosa, weights: Value, bits: int, count: int, values: Scaled
) -> Lazy:
    """Return (weights @ values) / total, where the weights of a row sum up to total.

    The weights have ``bits`` bits; ``count`` of them are in a row.
    """
    widths = WIDTHS[values.q.dtype]
    lost = widths.lost(bits, count)
    y = _weighted_values(t, weights, values.q, values.zero_point, lost)
    total = t.reduce_sum(weights, weights.rank - 1)
    return _divided_by_sums(t, y, total, values.scale, widths.value, lost)


def _weighted_values(
    t: Tosa, weights: Value, values: Value, zero_point: int, lost: int
) -> Value:
    """weights [*B,L,S], values [*B,S,V] -> [*B,L,V], in steps of 2**lost.

    This is weights @ (values - zero_point). The result is the sum of two products, one
    with the high bits of the weights, one with the low bits.
    """
    # weights = high * 2**LOWER + low, where low is from -half to half - 1
    half = 1 << (LOWER - 1)
    high = t.right_shift(t.add(weights, half), LOWER)
    low = t.sub(weights, t.left_shift(high, LOWER))
    low.range = -half, half - 1

    def product(part: Value, lost_of_part: int) -> Value:
        """Return one of the products, in steps of 2**lost_of_part."""
        builder = Weighing(t, values, zero_point, lost_of_part)
        short = t.cast(part, values.dtype)
        return batched_product(builder, short, values)

    high_sums = product(high, max(lost - LOWER, 0))
    low_sums = product(low, lost)
    # high sums count 2**LOWER times as much as low ones, and have lost max(lost -
    # LOWER, 0) bits instead of ``lost``: the shift makes up for the difference
    shifted = t.left_shift(high_sums, max(LOWER - lost, 0))
    return t.add(shifted, low_sums)


def _in_one_product(t: Tosa, weights: Value, bits: int, values: Scaled) -> Lazy:
    """Return the result by one product with the upper 8 bits of the weights.

    The weights have ``bits`` bits, and are stored as int8 from -128 on.
    """
    coarse = Scaled(weights, Scale(2.0 ** (8 - bits)))
    q = rescale(t, coarse, 1.0, -128, DType.INT8)
    builder = Accumulating(t, DType.INT32, left=-128, right=values.zero_point)
    y = batched_product(builder, q, values.q)
    from_zero = rescale(t, Scaled(q, Scale(1.0), -128), 1.0, 0, DType.INT32)
    total = t.reduce_sum(from_zero, q.rank - 1)
    return _divided_by_sums(t, y, total, values.scale, bits=8, lost=0)


class Weighing(Accumulating):
    """Builder for a product of ``_weighted_values``.

    It rescales sums of int48 to int32 without ``lost`` low bits.
    """

    def __init__(self, t: Tosa, values: Value, zero_point: int, lost: int) -> None:
        """Create a builder that appends to the operators of ``t``.

        ``zero_point`` is that of ``values``. Weights have the zero point 0.
        """
        super().__init__(t, WIDE[values.dtype], left=0, right=zero_point)
        self._lost = lost

    def _narrow_sums(self, sums: Value, terms: int, left: Value, right: Value) -> Value:
        """Return the sums as int32: int48 is divided by 2**lost and rounded."""
        if sums.dtype is DType.INT32:
            return sums
        return self._rescaled(sums, Scale(2.0**-self._lost))


def _divided_by_sums(
    t: Tosa, y: Value, total: Value, scale: Scale, bits: int, lost: int
) -> Lazy:
    """Return (y << lost) / total as integers in ``scale``.

    |y << lost| must be less than total << bits. With the reciprocal of the total, n /
    total is (n << inverse.shift) * inverse.mantissa, divided by a power of two. y is
    shifted once, by the sum of three shifts: left by ``lost`` and by inverse.shift,
    right by ``bits``, so that the product fits.
    """
    inverse = reciprocal(t, t.maximum(total, 1))
    shift = t.sub(inverse.shift, bits - lost)
    shifted = t.left_shift(y, t.maximum(shift, 0))
    quotient = t.mul(shifted, inverse.mantissa, shift=31)
    return Scaled(quotient, scale.over(2.0 ** (FRACTION - bits)))
