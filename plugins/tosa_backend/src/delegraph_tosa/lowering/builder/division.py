"""Division of floats, correctly rounded; TOSA has no operator for it.

RECIPROCAL and MUL give an estimate of the quotient. The remainder, dividend - estimate
* divisor, is then computed exactly: both factors are split into halves of 12 bits
(Dekker's splitting). Their products are exact in fp32.
"""

from __future__ import annotations

import numpy as np

from ...ir.graph import Value
from .operators import Operators

LARGEST = float(np.finfo(np.float32).max)


def halves(t: Operators, y: Value) -> tuple[Value, Value]:
    """Split y into its upper 12 bits and the rest.

    Returns (y, 0) for |y| above 2^110, where splitting would overflow. Infinity becomes
    the largest finite number, because products of it with 0 have to be 0.
    """
    y = t.clamp(y, -LARGEST, LARGEST)
    # Dekker: with p = (2^12 + 1) y, p - (p - y) is y rounded to 12 bits
    p = t.mul(y, 4097)
    rounded = t.sub(p, t.sub(p, y))
    would_overflow = t.greater(t.abs(y), 2.0**110)
    upper = t.select(would_overflow, y, rounded)
    return upper, t.sub(y, upper)


def rounded_quotient(t: Operators, x: Value, y: Value, estimate: Value) -> Value:
    """Return x / y, rounded to the nearest float.

    ``estimate`` is x / y with an error of a few units in the last place. The result is
    estimate + remainder / y. The correction is exact to 22 bits. So the result is the
    nearest float, unless the quotient is nearer than 2**-44 (relative) to the middle
    between two floats. A quotient of integers with a divisor d < 2**18 never is: its
    relative distance from such a middle is at least 2**-25 / d.
    """
    # remainder = x - (high + low) * (upper + lower): each of the four products is
    # exact, the largest comes first
    high, low = halves(t, estimate)
    upper, lower = halves(t, y)
    remainder = x
    for left, right in ((high, upper), (high, lower), (low, upper), (low, lower)):
        product = t.mul(left, right)
        remainder = t.sub(remainder, product)
    correction = t.mul(remainder, t.reciprocal(y))
    return t.add(estimate, correction)
