"""Replaces operators of TOSA 1.0 that a target of TOSA 0.80 lacks.

The builder calls ``instead`` when the table of the target refuses an operator. If that
returns None, the call that needs the operator is refused. The module is imported when
it is first needed.
"""

from __future__ import annotations

from ...ir import operators as tosa
from ...ir.graph import Operator, Value
from ...ir.operators.convolution import Convolution
from ...ir.types import FLOATS, SHORT_FLOATS, DType, NanMode
from .operators import Operators
from .polynomials import polynomial

HALF_PI = (1.5703125, 4.837512969970703e-4, 7.543712854385376e-8, 6.07710062827671e-11)
"""pi / 2 as a sum of parts of 8, 11, 8 and 24 bits.

Products of the first three with integers up to 2**13 are exact.
"""
SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
"""sin(x) = x + x z P(z), z = x * x, for |x| <= pi / 4.

Coefficients of the Cephes library (S. Moshier).
"""
COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
"""cos(x) = 1 - z / 2 + z z P(z)"""


def instead(t: Operators, operator: Operator) -> Value | None:
    """Compute ``operator``, which TOSA 0.80 lacks, by other operators.

    Returns None if there is no replacement.
    """
    dtype = operator.outputs[0].dtype
    if isinstance(operator, tosa.SIN):
        return _wave(t, operator.inputs[0], is_cosine=False)
    if isinstance(operator, tosa.COS):
        return _wave(t, operator.inputs[0], is_cosine=True)
    if isinstance(operator, Convolution) and dtype in SHORT_FLOATS:
        return _rounded_sum(t, operator)
    nan_mode = operator.attribute_values().get("nan_mode")
    if nan_mode is NanMode.IGNORE and dtype in FLOATS:
        return _without_nan(t, operator)
    return None


def _rounded_sum(t: Operators, convolution: Convolution) -> Value:
    """Compute a convolution of fp16 or bf16 with one rounding at the end, as 1.0 does.

    0.80 sums in the type of the result. So the convolution returns fp32 here, which is
    then cast.
    """
    x, weight, bias, *zero_points = convolution.inputs
    inputs = (x, weight, t.cast(bias, DType.FP32), *zero_points)
    attributes = convolution.attribute_values() | {"acc_type": DType.FP32}
    wide = t.emit(type(convolution), inputs, fold=False, **attributes)
    return t.cast(wide, convolution.outputs[0].dtype)


def _without_nan(t: Operators, operator: Operator) -> Value | None:
    """Return the result of MAXIMUM, MINIMUM or CLAMP with nan_mode IGNORE.

    None for other operators. With IGNORE, MAXIMUM and MINIMUM of NaN and a number are
    the number, and CLAMP of NaN is ``min_val``. In 0.80 these operators propagate NaN,
    so SELECT replaces NaN elements.
    """
    if isinstance(operator, tosa.CLAMP):
        x = operator.inputs[0]
        numbers = t.select(_is_number(t, x), x, operator.min_val)
        return t.clamp(numbers, operator.min_val, operator.max_val)
    if not isinstance(operator, tosa.MAXIMUM | tosa.MINIMUM):
        return None
    left, right = operator.inputs
    extreme = t.emit(type(operator), (left, right), nan_mode=NanMode.PROPAGATE)
    # where ``left`` is NaN, the result is ``right``; where only ``right`` is NaN, it is
    # ``left``
    left_is_number = _is_number(t, left)
    extreme_or_left = t.select(_is_number(t, right), extreme, left)
    return t.select(left_is_number, extreme_or_left, right)


def _is_number(t: Operators, x: Value) -> Value:
    """Return whether each element is not NaN: only NaN does not equal itself."""
    return t.equal(x, x)


def _wave(t: Operators, x: Value, is_cosine: bool) -> Value:
    """Return sin(x) or cos(x) as +-sin(r) or +-cos(r).

    r is x - quarters * pi / 2, and |r| <= pi / 4. The error is below 2e-7 for |x| up to
    12,000 and 1e-6 at 100,000. For larger x, quarters * pi / 2 is not exact: the error
    is 0.03 at a million. Infinity gives NaN.
    """
    if x.dtype in SHORT_FLOATS:
        wave = _wave(t, t.cast(x, DType.FP32), is_cosine)
        return t.cast(wave, x.dtype)
    # x / (pi / 2), rounded to the nearest whole number
    turns = t.mul(x, 0.6366197723675814)
    quarters = t.floor(t.add(turns, 0.5))
    rest = x
    for part in HALF_PI:
        rest = t.sub(rest, t.mul(quarters, part))
    # without effect unless x is so large that the products are not exact
    rest = t.clamp(rest, -1, 1)
    # cos(x) is sin(x + pi / 2); sin(r + k * pi / 2) is sin r, cos r, -sin r, -cos r for
    # k % 4 = 0, 1, 2, 3
    if is_cosine:
        quarters = t.add(quarters, 1)
    # with k = quarters: is_odd is k % 2, is_negated is k // 2 % 2
    halves = _half_rounded_down(t, quarters)
    is_odd = _is_odd(t, quarters, halves)
    is_negated = _is_odd(t, halves, _half_rounded_down(t, halves))
    square = t.mul(rest, rest)
    sine = _sine(t, rest, square)
    cosine = _cosine(t, square)
    y = t.select(is_odd, cosine, sine)
    y = t.select(is_negated, t.negate(y), y)
    if is_cosine:
        return y
    # sin(-0.0) is -0.0
    is_not_zero = t.greater(t.abs(x), 0)
    return t.select(is_not_zero, y, x)


def _half_rounded_down(t: Operators, whole: Value) -> Value:
    """Return whole numbers divided by 2, rounded down."""
    return t.floor(t.mul(whole, 0.5))


def _is_odd(t: Operators, whole: Value, half: Value) -> Value:
    """Return whether whole numbers are odd; ``half`` is ``_half_rounded_down``."""
    remainder = t.sub(whole, t.mul(half, 2))
    return t.greater(remainder, 0.5)


def _sine(t: Operators, x: Value, square: Value) -> Value:
    """Return sin(x) for |x| <= pi / 4 (see ``SIN``)."""
    cube = t.mul(x, square)
    return t.add(x, t.mul(cube, polynomial(t, square, SIN)))


def _cosine(t: Operators, square: Value) -> Value:
    """Return cos(x) for |x| <= pi / 4, from the square of x (see ``COS``)."""
    parabola = t.sub(1, t.mul(square, 0.5))
    fourth_power = t.mul(square, square)
    return t.add(parabola, t.mul(fourth_power, polynomial(t, square, COS)))
