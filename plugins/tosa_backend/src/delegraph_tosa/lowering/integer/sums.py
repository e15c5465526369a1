"""Sums of values in different quantizations: what brings them to one scale in 32 bits.

The larger scale is a power of two times that of the sum: so fine that what is lost does not show, and exact where the
scales are equal.
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
"""Bits of an operand that is no integer yet: some more than fp32 has."""
HIDES = -1000.0
"""What is added to a score to hide it is less than this; a softmax makes 0 of it."""


def addend(t: Tosa, value: Value) -> Scaled:
    """A value with one scale, and integers of known size."""
    if isinstance(value, Scaled) and not value.scale.tensors and value.size <= 1 << BITS:
        return value
    if not isinstance(value, Lazy):
        raise refused("one of its operands is a float")
    most = value.reach(t)
    t.require(most < math.inf, "one of its operands is quantized by nothing before")
    return in_steps(t, value, max(most, 1e-30) / 2.0**FINE)


def in_steps(t: Tosa, value: Value, step: float, most: int = 1 << FINE) -> Scaled:
    """A value as int32 in steps of ``step``, from -most to most."""
    return Scaled(integer(t, value, Quantization(step, 0, -most, most, DType.INT32)), Scale(step))


def aligned(t: Tosa, values: Sequence[Scaled]) -> tuple[list[Value], float]:
    """The values in int32, without zero points, and the scale that all of them have."""
    largest = max(x.scale.factor for x in values)
    total = math.fsum(x.size * x.scale.factor for x in values) / largest
    step = largest / 2.0 ** (BITS - math.ceil(math.log2(max(total, 1)) + 1e-9))
    return [centred(t, x, step) for x in values], step


def centred(t: Tosa, x: Scaled, step: float) -> Value:
    """Its integers in steps of ``step``, int32 without zero point."""
    if x.q.dtype is DType.INT32 and (x.scale.factor, x.zero_point) == (step, 0):
        return x.q
    return rescale(t, x, step, 0, DType.INT32)


def times(t: Tosa, x: Value, factor: float) -> Scaled:
    """x * factor, which changes the scale only, and the sign."""
    found = x if isinstance(x, Scaled) and factor > 0 else addend(t, x)
    t.require(math.isfinite(factor) and factor != 0, f"a factor of {factor} is no scale")
    if factor > 0:
        return Scaled(found.q, found.scale.over(1 / factor), found.zero_point, found.axis)
    return Scaled(t.sub(0, centred(t, found, found.scale.factor)), found.scale.over(-1 / factor))


class Shifted(Lazy):
    """The sum of a value and of numbers that may be too far from zero for a common scale: masks, biases.

    Numbers that would take the sum beyond the range of the result are limited first.
    """

    __slots__ = ("by", "of")

    def __init__(self, of: Lazy, by: Value, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.of, self.by = of, by

    def integer(self, t: Tosa, to: Quantization) -> Value:
        most = self.of.reach(t) + (self.by.reach(t, HIDES) if isinstance(self.by, Lazy) else 0)
        t.require(most < math.inf, "one of its operands is quantized by nothing before")
        step = to.scale
        if to.dtype is not DType.INT32:
            step = (most + max(abs(end - to.zero_point) for end in to.range) * to.scale) / 2.0 ** (BITS - 1)
        x, by = (in_steps(t, v, step, 1 << 30).q for v in (self.of, self.by))
        return Scaled(t.add(x, by), Scale(step)).integer(t, to)

    def reach(self, t: Tosa, least: float = -math.inf) -> float:
        return self.of.reach(t, least) + (_unless_hiding(t, self.by) if least == HIDES else reach(t, self.by, least))

    def real(self, t: Tosa) -> Value:
        return t.add(real(t, self.of), real(t, self.by))


def _unless_hiding(t: Tosa, by: Value) -> float:
    """How far from zero they are, but for those that hide; a guess where they are not known before the program runs."""
    if isinstance(by, Lazy):
        return by.reach(t, HIDES)
    if by.constant is None:
        return -HIDES
    try:
        return float(t.once(("reach", by), lambda: reach(t, by, HIDES)))
    except Unsupported:  # in the support check
        return 0.0
