"""Polynomials of values."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.graph import Value
from .operators import Operators


def polynomial(t: Operators, x: Value, coefficients: Sequence[float]) -> Value:
    """Return the polynomial of x with these coefficients, by Horner's scheme.

    The highest power comes first.
    """
    y: Value | float = coefficients[0]
    for coefficient in coefficients[1:]:
        y = t.add(t.mul(x, y), coefficient)
    assert isinstance(y, Value)
    return y
