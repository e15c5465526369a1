"""Division of floats, rounded as IEEE 754 says; TOSA has no operator for it.

RECIPROCAL and MUL give an estimate of the quotient. The remainder, dividend - estimate * divisor, is then computed
exactly: both factors are split into halves of 12 bits (Dekker's splitting), whose products fp32 holds.
"""

from __future__ import annotations

import numpy as np

from ...ir.graph import Value
from .operators import Operators

LARGEST = float(np.finfo(np.float32).max)


def halves(t: Operators, y: Value) -> tuple[Value, Value]:
    """y as the sum of its upper 12 bits and the rest; for a large y, whose splitting would overflow, y and 0.

    An infinite y becomes the largest number, because 0 times it has to be 0.
    """
    y = t.clamp(y, -LARGEST, LARGEST)
    spread = t.mul(y, 4097)
    upper = t.sub(spread, t.sub(spread, y))
    upper = t.select(t.greater(t.abs(y), 2.0**110), y, upper)
    return upper, t.sub(y, upper)


def rounded_quotient(t: Operators, x: Value, y: Value, estimate: Value) -> Value:
    """x / y, rounded to the nearest float, from an ``estimate`` that is a few units in the last place off.

    The correction is right to 22 bits. So the result is the nearest float unless the quotient lies within 2**-44 of
    itself from the middle between two floats. A quotient of integers never does if the divisor is below 2**18: it is at
    least 2**-25 / divisor of itself away from such a middle.
    """
    (high, low), (upper, lower) = halves(t, estimate), halves(t, y)
    rest = t.sub(t.sub(t.sub(x, t.mul(high, upper)), t.mul(high, lower)), t.mul(low, upper))
    return t.add(estimate, t.mul(t.sub(rest, t.mul(low, lower)), t.reciprocal(y)))
