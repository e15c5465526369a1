"""Conditions on int32 as integers 0 and 1, for targets without PRO-INT.

These targets add, multiply, divide and shift int32, but neither compare nor select. The
sign of x is its first bit, so ``x >> 31`` compares with 0. A product with 0 or 1
selects.
"""

from __future__ import annotations

from ...ir.graph import Value
from ..builder import Tosa
from ..ranges.value_ranges import inside, range_of


def has_comparisons(t: Tosa) -> bool:
    """Return whether the target compares and selects int32."""
    return "INT" in t.spec.profiles


def negative(t: Tosa, x: Value) -> Value:
    """int32 [*S] -> [*S]; 1 where x is negative, else 0"""
    return t.right_shift_of_bits(x, 31)


def positive(t: Tosa, x: Value) -> Value:
    """int32 [*S] -> [*S]; 1 where x is above 0, else 0.

    x must not be -2**31, because 2**31 does not fit into int32.
    """
    return negative(t, t.sub(0, x))


def inverted_where(t: Tosa, condition: Value, x: Value) -> Value:
    """int32 [*S] -> [*S]; -1 - x, all bits inverted, where ``condition`` is 1, else x.

    One of the two products is 0, so that their sum fits into int32 for any x.
    """
    kept = t.mul(x, t.sub(1, condition))
    inverted = t.mul(t.sub(-1, x), condition)
    return t.add(kept, inverted)


def in_five_bits(t: Tosa, x: Value) -> tuple[Value, Value | None]:
    """Return the last five bits of int32 x, and 1 where x has no other bits, else 0.

    None means 1 everywhere.
    """
    if inside(range_of(x), (0, 31)):
        return x, None
    others = t.right_shift_of_bits(x, 5)
    # ``others`` has 27 bits: others + 2**27 - 1 has bit 27 unless ``others`` is 0
    has_others = t.right_shift_of_bits(t.add(others, (1 << 27) - 1), 27)
    last_bits = t.sub(x, t.left_shift(others, 5))
    return last_bits, t.sub(1, has_others)
