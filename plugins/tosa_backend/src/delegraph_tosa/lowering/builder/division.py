"""Division of floats as IEEE 754 rounds it, which TOSA has no operator for.

RECIPROCAL and MUL come near the quotient. What that leaves of the dividend is computed exactly, with both factors in
two halves of 12 bits (Dekker's splitting), whose products fp32 holds.
"""

from __future__ import annotations

import numpy as np

from ...ir.graph import Value
from .operators import Operators

LARGEST = float(np.finfo(np.float32).max)


def halves(t: Operators, y: Value) -> tuple[Value, Value]:
    """y as the sum of its upper 12 bits and the rest; of a large y, whose upper half would overflow, y and 0.

    An infinite y counts as the largest number: 0 times it is 0.
    """
    y = t.clamp(y, -LARGEST, LARGEST)
    spread = t.mul(y, 4097)
    upper = t.sub(spread, t.sub(spread, y))
    upper = t.select(t.greater(t.abs(y), 2.0**110), y, upper)
    return upper, t.sub(y, upper)


def rounded_quotient(t: Operators, x: Value, y: Value, estimate: Value) -> Value:
    """x / y from an estimate that is a few units in the last place off.

    The correction is right to 22 bits, so the result is the float that is nearest unless the quotient lies within
    2**-44 of itself from the middle of two. None of integers does whose divisor is below 2**18: it is 25 bits away
    from such a middle, times the divisor.
    """
    (high, low), (upper, lower) = halves(t, estimate), halves(t, y)
    rest = t.sub(t.sub(t.sub(x, t.mul(high, upper)), t.mul(high, lower)), t.mul(low, upper))
    return t.add(estimate, t.mul(t.sub(rest, t.mul(low, lower)), t.reciprocal(y)))
