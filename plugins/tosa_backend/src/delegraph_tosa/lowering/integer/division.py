"""Quotients of two quantized values.

The range of a quotient is not known at compile time. So the quotient is computed in the
scale of the quantization that the result gets.
"""

from __future__ import annotations

import math

import torch

from ...ir.graph import Value
from ...ir.types import DType
from ..builder import Tosa
from ..lazy.lazy_values import Lazy, Scaled, limit
from ..lazy.quantization import Quantization
from ..registry import lowering_of
from .fixed_point import reciprocal
from .sums import centred

MOST = 17
"""Bits of a quotient before it is clamped: one more than int16 has."""


class Quotient(Lazy):
    """left / right. A number divided by 0 is infinite; 0 / 0 is 0."""

    __slots__ = ("left", "right")

    def __init__(self, left: Scaled, right: Scaled, shape: tuple[int, ...]) -> None:
        """Compute left / right. Their integers broadcast to ``shape``."""
        super().__init__(shape)
        self.left = left
        self.right = right

    def integer(self, t: Tosa, to: Quantization) -> Value:
        """Return the quotient in the quantization ``to``.

        Raises Unsupported unless this is int8 or int16.
        """
        t.refuse_unless(
            to.dtype in (DType.INT8, DType.INT16),
            f"a quotient in {to.dtype} is not lowered",
        )
        # integers without zero points; in steps of ``to``, the quotient is n / d *
        # ratio
        n, d = (centred(t, x, x.scale.factor) for x in (self.left, self.right))
        ratio = self.left.scale.factor / self.right.scale.factor / to.scale
        steps = _quotient_of_magnitudes(t, t.abs(n), t.abs(d), ratio)
        # n ^ d is negative where the signs differ
        is_negative = t.greater(0, t.bitwise_xor(n, d))
        signed = t.select(is_negative, t.sub(0, steps), steps)
        shifted = t.add(signed, to.zero_point)
        return t.cast(limit(t, shifted, to.low, to.high), to.dtype)

    def real(self, t: Tosa) -> Value:
        """Return left / right of the real numbers, computed in floats."""
        float_rule = lowering_of(torch.ops.aten.div.Tensor)
        left = self.left.real(t)
        right = self.right.real(t)
        result: Value = float_rule(t, left, right)
        return result


def _quotient_of_magnitudes(t: Tosa, n: Value, d: Value, ratio: float) -> Value:
    """n, d int32 >= 0 -> n / d * ratio, rounded, below 2**(MOST + 1)

    n and d are shifted left until they have 31 bits, so that their quotient has 29
    bits. n << a lies in [2**30, 2**31), n / d = (n << a) * mantissa / 2**60 * 2**(shift
    - a), and ratio = fraction * 2**e.
    """
    a = t.sub(t.clz(n), 1)
    inverse = reciprocal(t, t.maximum(d, 1))
    fraction, e = math.frexp(ratio)
    shifted = t.left_shift(n, a)
    product = t.mul(shifted, inverse.mantissa, shift=31)
    # minus 0.5, so that a fraction next to 1 does not become 2**31, which is no int32
    product = t.mul(product, round(fraction * 2**31 - 0.5), shift=31)
    # the product is n / d * ratio with this many fraction bits
    fraction_bits = t.add(t.sub(a, inverse.shift), 29 - e)
    # at least 29 - MOST, so that the result has at most MOST bits; n / 0 gets the
    # fewest, to be the largest number
    fewest = 29 - MOST
    is_infinite = t.equal(d, 0)
    in_range = t.minimum(t.maximum(fraction_bits, fewest), 31)
    fraction_bits = t.select(is_infinite, fewest, in_range)
    # add half of the last bit that remains, then drop the fraction bits
    half = t.left_shift(1, t.sub(fraction_bits, 1))
    rounded = t.add(product, half)
    return t.right_shift(rounded, fraction_bits)
