"""Sums of values in different quantizations, which are brought to one scale in 32 bits first.

The common scale is the largest scale divided by a power of two. It is so fine that what rounding loses does not show;
where the scales are equal, nothing is lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from delegraph.errors import Unsupported

from ...ir.graph import Value
from ...ir.types import DType
from ..builder import Tosa
from ..lazy.quantization import Quantization, Scale
from ..lazy.values import BITS, Lazy, Scaled, integer, reach, real, rescale
from ..torch_values.types import refused

FINE = 27
"""Bits of an operand whose integers are not computed yet: some more than fp32 has."""
HIDES = -1000.0
"""A number that is added to a score to hide it is below this; a softmax makes 0 of such a score."""


def addend(t: Tosa, value: Value) -> Scaled:
    """``value`` as integers with one scale and in a known range; Unsupported if it has none."""
    if isinstance(value, Scaled) and not value.scale.tensors and value.size <= 1 << BITS:
        return value
    if not isinstance(value, Lazy):
        raise refused("one of its operands is a float")
    most = value.reach(t)
    t.require(most < math.inf, "one of its operands is quantized by nothing before")
    return in_steps(t, value, max(most, 1e-30) / 2.0**FINE)


def in_steps(t: Tosa, value: Value, step: float, most: int = 1 << FINE) -> Scaled:
    """``value`` as int32 in steps of ``step``, limited to -most .. most."""
    return Scaled(integer(t, value, Quantization(step, 0, -most, most, DType.INT32)), Scale(step))


def aligned(t: Tosa, values: Sequence[Scaled]) -> tuple[list[Value], float]:
    """The values as int32 in one scale, without zero points, and that scale. It leaves room for their sum."""
    largest = max(x.scale.factor for x in values)
    total = math.fsum(x.size * x.scale.factor for x in values) / largest
    step = largest / 2.0 ** (BITS - math.ceil(math.log2(max(total, 1)) + 1e-9))
    return [centred(t, x, step) for x in values], step


def centred(t: Tosa, x: Scaled, step: float) -> Value:
    """The integers of x in steps of ``step``, int32 without zero point."""
    if x.q.dtype is DType.INT32 and (x.scale.factor, x.zero_point) == (step, 0):
        return x.q
    return rescale(t, x, step, 0, DType.INT32)


def times(t: Tosa, x: Value, factor: float) -> Scaled:
    """x * factor. Only the scale changes, and for a negative factor the sign of the integers."""
    found = x if isinstance(x, Scaled) and factor > 0 else addend(t, x)
    t.require(math.isfinite(factor) and factor != 0, f"a factor of {factor} is no scale")
    if factor > 0:
        return Scaled(found.q, found.scale.over(1 / factor), found.zero_point, found.axis)
    return Scaled(t.sub(0, centred(t, found, found.scale.factor)), found.scale.over(-1 / factor))


class Shifted(Lazy):
    """The sum of a value ``of`` and numbers ``by`` that may be too far from zero for a common scale: masks, biases.

    It waits for the quantization of the result. Numbers that would take the sum beyond its range are limited first.
    """

    __slots__ = ("by", "of")

    def __init__(self, of: Lazy, by: Value, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.of, self.by = of, by

    def integer(self, t: Tosa, to: Quantization) -> Value:
        """Both operands in steps that hold every sum within the result's range, added, and rescaled."""
        most = self.of.reach(t) + (self.by.reach(t, HIDES) if isinstance(self.by, Lazy) else 0)
        t.require(most < math.inf, "one of its operands is quantized by nothing before")
        step = to.scale
        if to.dtype is not DType.INT32:
            step = (most + max(abs(end - to.zero_point) for end in to.range) * to.scale) / 2.0 ** (BITS - 1)
        x, by = (in_steps(t, v, step, 1 << 30).q for v in (self.of, self.by))
        return Scaled(t.add(x, by), Scale(step)).integer(t, to)

    def reach(self, t: Tosa, least: float = -math.inf) -> float:
        """The sum of both reaches."""
        return self.of.reach(t, least) + (
            _reach_unless_hiding(t, self.by) if least == HIDES else reach(t, self.by, least)
        )

    def real(self, t: Tosa) -> Value:
        return t.add(real(t, self.of), real(t, self.by))


def _reach_unless_hiding(t: Tosa, by: Value) -> float:
    """The reach of ``by``, without numbers that hide elements; a guess for floats that are computed at run time."""
    if isinstance(by, Lazy):
        return by.reach(t, HIDES)
    if by.constant is None:
        return -HIDES
    try:
        return float(t.once(("reach", by), lambda: reach(t, by, HIDES)))
    except Unsupported:  # in the support check, which reads no constants
        return 0.0
