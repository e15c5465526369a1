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

    Returns None without a replacement.
    """
    if isinstance(operator, tosa.SIN | tosa.COS):
        return _wave(t, operator.inputs[0], isinstance(operator, tosa.COS))
    if isinstance(operator, Convolution) and operator.outputs[0].dtype in SHORT_FLOATS:
        return _rounded_sum(t, operator)
    if (
        operator.outputs[0].dtype in FLOATS
        and operator.attribute_values().get("nan_mode") is NanMode.IGNORE
    ):
        return _without_nan(t, operator)
    return None


def _rounded_sum(t: Operators, convolution: Convolution) -> Value:
    """Compute a convolution of fp16 or bf16 with one rounding at the end, as 1.0 does.

    0.80 sums in the type of the result. So the convolution returns fp32 here, which is
    then cast.
    """
    x, weight, bias, *zero_points = convolution.inputs
    inputs = (x, weight, t.cast(bias, DType.FP32), *zero_points)
    wide = t.emit(
        type(convolution),
        inputs,
        fold=False,
        **convolution.attribute_values() | {"acc_type": DType.FP32},
    )
    return t.cast(wide, convolution.outputs[0].dtype)


def _without_nan(t: Operators, operator: Operator) -> Value | None:
    """Return the result of MAXIMUM, MINIMUM or CLAMP with nan_mode IGNORE.

    None for other operators. With IGNORE, MAXIMUM and MINIMUM of NaN and a number are
    the number, and CLAMP of NaN is ``min_val``. In 0.80 these operators propagate NaN,
    so SELECT replaces NaN elements.
    """
    if isinstance(operator, tosa.CLAMP):
        x = operator.inputs[0]
        # only NaN does not equal itself
        return t.clamp(
            t.select(t.equal(x, x), x, operator.min_val),
            operator.min_val,
            operator.max_val,
        )
    if not isinstance(operator, tosa.MAXIMUM | tosa.MINIMUM):
        return None
    left, right = operator.inputs
    extreme = t.emit(type(operator), (left, right), nan_mode=NanMode.PROPAGATE)
    # where ``left`` is NaN, the result is ``right``; where only ``right`` is NaN, it is
    # ``left``
    return t.select(
        t.equal(left, left), t.select(t.equal(right, right), extreme, left), right
    )


def _wave(t: Operators, x: Value, is_cosine: bool) -> Value:
    """Return sin(x) or cos(x) as +-sin(r) or +-cos(r).

    r is x - quarters * pi / 2, and |r| <= pi / 4. The error is below 2e-7 for |x| up to
    12,000 and 1e-6 at 100,000. For larger x, quarters * pi / 2 is not exact: the error
    is 0.03 at a million. Infinity gives NaN.
    """
    if x.dtype in SHORT_FLOATS:
        return t.cast(_wave(t, t.cast(x, DType.FP32), is_cosine), x.dtype)
    # x / (pi / 2), rounded to the nearest whole number
    quarters = t.floor(t.add(t.mul(x, 0.6366197723675814), 0.5))
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
    halves = t.floor(t.mul(quarters, 0.5))
    is_odd = t.greater(t.sub(quarters, t.mul(halves, 2)), 0.5)
    is_negated = t.greater(t.sub(halves, t.mul(t.floor(t.mul(halves, 0.5)), 2)), 0.5)
    square = t.mul(rest, rest)
    sine = t.add(rest, t.mul(t.mul(rest, square), polynomial(t, square, SIN)))
    cosine = t.add(
        t.sub(1, t.mul(square, 0.5)),
        t.mul(t.mul(square, square), polynomial(t, square, COS)),
    )
    y = t.select(is_odd, cosine, sine)
    y = t.select(is_negated, t.negate(y), y)
    # sin(-0.0) is -0.0
    return y if is_cosine else t.select(t.greater(t.abs(x), 0), y, x)
