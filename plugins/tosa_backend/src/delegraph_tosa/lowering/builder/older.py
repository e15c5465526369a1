"""Computes what TOSA 0.80 has no operator for by operators that it has. Imported only for targets that lack one.

``instead`` is called when the table of the target refuses an operator. An operator that is not here is left to the
host.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...ir import operators as tosa
from ...ir.graph import Operator, Value
from ...ir.operators.convolution import Convolution
from ...ir.types import FLOATS, SHORT_FLOATS, DType, NanMode
from .operators import Operators

HALF_PI = (1.5703125, 4.837512969970703e-4, 7.543712854385376e-8, 6.07710062827671e-11)
"""Parts of pi / 2 of 8, 11, 8 and 24 bits. Products of the first three with whole numbers up to 2**13 are exact."""
SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
"""sin(x) = x + x z P(z), z = x * x, for |x| <= pi / 4; coefficients of the Cephes library (S. Moshier)"""
COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
"""cos(x) = 1 - z / 2 + z z P(z)"""


def instead(t: Operators, operator: Operator) -> Value | None:
    """The result of an operator that 0.80 lacks, computed otherwise; None if there is no way that is exact enough."""
    if isinstance(operator, tosa.SIN | tosa.COS):
        return _wave(t, operator.inputs[0], isinstance(operator, tosa.COS))
    if isinstance(operator, Convolution) and operator.outputs[0].dtype in SHORT_FLOATS:
        return _rounded_sum(t, operator)
    if operator.outputs[0].dtype in FLOATS and operator.attribute_values().get("nan_mode") is NanMode.IGNORE:
        return _without_nan(t, operator)
    return None


def _rounded_sum(t: Operators, convolution: Convolution) -> Value:
    """A convolution of short floats that sums in fp32 and rounds at the end, as 1.0 does.

    0.80 sums in the type of the result, so the result is fp32 here, and then cast.
    """
    x, weight, bias, *zero_points = convolution.inputs
    inputs = (x, weight, t.cast(bias, DType.FP32), *zero_points)
    wide = t.emit(type(convolution), inputs, fold=False, **convolution.attribute_values() | {"acc_type": DType.FP32})
    return t.cast(wide, convolution.outputs[0].dtype)


def _without_nan(t: Operators, operator: Operator) -> Value | None:
    """MAXIMUM, MINIMUM or CLAMP that prefer a number to NaN, by those of 0.80, which keep NaN."""
    if isinstance(operator, tosa.CLAMP):
        x = operator.inputs[0]
        return t.clamp(t.select(t.equal(x, x), x, operator.min_val), operator.min_val, operator.max_val)
    if not isinstance(operator, tosa.MAXIMUM | tosa.MINIMUM):
        return None
    left, right = operator.inputs
    both = t.emit(type(operator), (left, right), nan_mode=NanMode.PROPAGATE)
    return t.select(t.equal(left, left), t.select(t.equal(right, right), both, left), right)


def _wave(t: Operators, x: Value, is_cosine: bool) -> Value:
    """sin x, or cos x, as sine or cosine of what is left of x after whole quarters of the circle.

    The error is below 2e-7 for |x| up to 12,000 and 1e-6 at 100,000. Beyond, whole quarters are not exact any more:
    0.03 at a million. Infinity gives NaN.
    """
    if x.dtype in SHORT_FLOATS:
        return t.cast(_wave(t, t.cast(x, DType.FP32), is_cosine), x.dtype)
    quarters = t.floor(t.add(t.mul(x, 0.6366197723675814), 0.5))
    rest = x
    for part in HALF_PI:
        rest = t.sub(rest, t.mul(quarters, part))
    rest = t.clamp(rest, -1, 1)  # of an x so large that its quarters are not exact
    if is_cosine:
        quarters = t.add(quarters, 1)
    halves = t.floor(t.mul(quarters, 0.5))
    is_odd = t.greater(t.sub(quarters, t.mul(halves, 2)), 0.5)
    below = t.greater(t.sub(halves, t.mul(t.floor(t.mul(halves, 0.5)), 2)), 0.5)
    square = t.mul(rest, rest)
    sine = t.add(rest, t.mul(t.mul(rest, square), _polynomial(t, square, SIN)))
    cosine = t.add(t.sub(1, t.mul(square, 0.5)), t.mul(t.mul(square, square), _polynomial(t, square, COS)))
    y = t.select(is_odd, cosine, sine)
    y = t.select(below, t.negate(y), y)
    return y if is_cosine else t.select(t.greater(t.abs(x), 0), y, x)  # the sign of a zero


def _polynomial(t: Operators, x: Value, coefficients: Sequence[float]) -> Value:
    """The polynomial of x with these coefficients, the highest power first."""
    y: Value | float = coefficients[0]
    for coefficient in coefficients[1:]:
        y = t.add(t.mul(x, y), coefficient)
    assert isinstance(y, Value)
    return y
