"""Sums values of different quantizations after rescaling them to one 32-bit scale.

The common scale is the largest scale divided by a power of two. It is so fine that
rounding errors do not show; values with equal scales are not rounded at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from delegraph.errors import Unsupported

from ...ir.graph import Value
from ...ir.types import DType
from ..builder import Tosa
from ..lazy.lazy_values import BITS, Lazy, Scaled, integer, reach, real, rescale
from ..lazy.quantization import Quantization, Scale
from ..torch_values.tensor_types import refused

FINE = 27
"""Bits of a lazy value's integers as an operand of a sum: more than fp32 has."""
UP = {DType.INT8: 19, DType.INT16: 14}
"""Maps a type to n, for operands that NPUs rescale and add in one step.

They multiply the operand with the larger scale by 2**n.
"""
HIDES = -1000.0
"""Numbers below this, added to a score by a mask, hide the score: its softmax is 0."""


def addend(t: Tosa, value: Value) -> Scaled:
    """Return ``value`` as integers of at most BITS bits with a single scale.

    A lazy value that has no such integers yet is computed as int32 with a scale in
    which its largest absolute value has FINE bits. Raises Unsupported for floats, and
    for a lazy value of unknown range.
    """
    if isinstance(value, Scaled):
        has_one_scale = not value.scale.tensors
        if has_one_scale and value.size <= 1 << BITS:
            return value
    if not isinstance(value, Lazy):
        raise refused("one of its operands is a float")
    most = value.reach(t)
    t.refuse_unless(
        most < math.inf, "one of its operands is quantized by nothing before"
    )
    # 1e-30 avoids a scale of 0 for a value that is 0 everywhere
    return in_steps(t, value, max(most, 1e-30) / 2.0**FINE)


def expect_fp32(t: Tosa, what: str, dtype: torch.dtype | None) -> None:
    """Raise Unsupported unless ``dtype``, an argument of the call, is fp32 or None.

    ``what`` names the call, such as "a sum".
    """
    is_fp32 = dtype in (None, torch.float32)
    t.refuse_unless(is_fp32, f"{what} in {dtype} is not lowered")


def in_steps(t: Tosa, value: Value, step: float, most: int = 1 << FINE) -> Scaled:
    """Return ``value`` as int32 with the scale ``step``, clamped to -most .. most."""
    quantization = Quantization(step, 0, -most, most, DType.INT32)
    return Scaled(integer(t, value, quantization), Scale(step))


def aligned(t: Tosa, values: Sequence[Scaled]) -> tuple[list[Value], float]:
    """Return the values as int32 without zero points in one scale, and this scale.

    Their sum fits into int32.
    """
    step = _common_step(values)
    return [centred(t, x, step) for x in values], step


def _common_step(values: Sequence[Scaled]) -> float:
    """Return the scale of ``aligned``.

    For int8 and int16 it is the one in which NPUs add them (docs/decisions/0028), if
    the sum fits. Otherwise the largest possible sum has BITS bits.
    """
    scales = {x.scale.factor for x in values}
    types = {x.q.dtype for x in values}
    largest = max(scales)
    up = 0
    if len(types) == 1:
        (dtype,) = types
        up = UP.get(dtype, 0)
    if up and len(scales) == 1:
        return largest
    # the largest possible sum, in steps of ``largest``
    total = math.fsum(x.size * x.scale.factor for x in values) / largest
    if up and total * 2.0**up <= 1 << BITS + 1:
        return largest / 2.0**up
    # 1e-9 guards against a log2 that is rounded down
    bits_of_total = math.ceil(math.log2(max(total, 1)) + 1e-9)
    return largest / 2.0 ** (BITS - bits_of_total)


def centred(t: Tosa, x: Scaled, step: float) -> Value:
    """Return the integers of x as int32 with the scale ``step``, without zero point."""
    has_step = x.scale.factor == step and x.zero_point == 0
    if x.q.dtype is DType.INT32 and has_step:
        return x.q
    return rescale(t, x, step, 0, DType.INT32)


def times(t: Tosa, x: Value, factor: float) -> Scaled:
    """Return x * factor.

    The scale changes, and for a negative factor also the sign of the integers. Raises
    Unsupported for a factor of 0, inf or NaN.
    """
    y = x if isinstance(x, Scaled) and factor > 0 else addend(t, x)
    t.refuse_unless(
        math.isfinite(factor) and factor != 0, f"a factor of {factor} is no scale"
    )
    if factor > 0:
        return Scaled(y.q, y.scale.over(1 / factor), y.zero_point, y.axis)
    negated = t.sub(0, centred(t, y, y.scale.factor))
    return Scaled(negated, y.scale.over(-1 / factor))


class Shifted(Lazy):
    """The sum of ``of`` and ``by``, a mask or bias with numbers that may be very large.

    It is computed when the quantization of the result is known. Numbers far outside of
    its range are clamped first: a scale that holds them would be too coarse.
    """

    __slots__ = ("by", "of")

    def __init__(self, of: Lazy, by: Value, shape: tuple[int, ...]) -> None:
        """``of`` and ``by`` broadcast to ``shape``."""
        super().__init__(shape)
        self.of = of
        self.by = by

    def integer(self, t: Tosa, to: Quantization) -> Value:
        """Return the sum in the quantization ``to``.

        Both operands are brought to int32 in a scale in which the largest number of
        ``of`` and the result's range fit together; numbers of ``by`` beyond that are
        clamped. Their sum is rescaled.
        """
        most = self.of.reach(t)
        if isinstance(self.by, Lazy):
            most += self.by.reach(t, HIDES)
        t.refuse_unless(
            most < math.inf, "one of its operands is quantized by nothing before"
        )
        step = to.scale
        if to.dtype is not DType.INT32:
            low, high = to.range
            most_steps = max(to.zero_point - low, high - to.zero_point)
            largest_result = most_steps * to.scale
            step = (most + largest_result) / 2.0 ** (BITS - 1)
        x = in_steps(t, self.of, step, most=1 << 30).q
        by = in_steps(t, self.by, step, most=1 << 30).q
        return Scaled(t.add(x, by), Scale(step)).integer(t, to)

    def reach(self, t: Tosa, least: float = -math.inf) -> float:
        """Return the largest absolute value of ``of`` plus that of ``by``.

        Elements below ``least`` do not count. If ``least`` is HIDES, numbers of a mask
        computed at run time are taken to be above it.
        """
        most = self.of.reach(t, least)
        if least == HIDES:
            return most + _reach_unless_hiding(t, self.by)
        return most + reach(t, self.by, least)

    def real(self, t: Tosa) -> Value:
        """Return the sum of the real numbers, computed in floats."""
        return t.add(real(t, self.of), real(t, self.by))


def _reach_unless_hiding(t: Tosa, by: Value) -> float:
    """Return the largest absolute value in ``by``, without numbers below HIDES.

    For floats that are computed at run time this is a guess, -HIDES. In the support
    check, which cannot read constants, it is 0 for a constant.
    """
    if isinstance(by, Lazy):
        return by.reach(t, HIDES)
    if by.constant is None:
        return -HIDES
    try:
        return float(t.once(("reach", by), lambda: reach(t, by, HIDES)))
    except Unsupported:  # in the support check, which reads no constants
        return 0.0
