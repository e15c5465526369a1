"""Computes softmax in integers: exp by tables, a 32-bit sum, one division a row.

The division uses Newton's iterations. Intermediate values have 15 bits and more, so
that their errors do not show in a result of 8 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...ir.dynamic_sizes import greatest
from ...ir.graph import Value
from ...ir.types import DType
from ..aten.reduce import axes_of
from ..builder import Tosa
from ..geometry.layout import axis_of
from ..lazy.lazy_values import BITS, Lazy, Scaled
from ..lazy.lookup_tables import looked_up
from ..lazy.quantization import Quantization, Scale
from ..ranges.value_ranges import range_of_type
from ..registry import lowering_of, lowers
from .fixed_point import (
    FRACTION,
    LOG_FRACTION,
    exp_of,
    exp_one,
    exp_table,
    logarithm,
    reciprocal,
)
from .softmax_int16 import int16_shares, takes_int16_softmax
from .sums import HIDES, Shifted, addend, aligned, expect_fp32, in_steps

aten = torch.ops.aten
MARGIN = 32.0
"""Distance of hidden elements below the smallest other one: their exp is 1e-14."""
_UNKNOWN = "its operand is not quantized"


class Softmax(Lazy):
    """The softmax of ``of`` along ``axis``, computed for the result's type."""

    __slots__ = ("axis", "of")

    def __init__(self, of: Lazy, dim: int) -> None:
        """Create the softmax of ``of`` along ``dim``, which may be negative."""
        super().__init__(of.shape)
        self.of = of
        self.axis = axis_of(dim, of.rank)

    def integer(self, t: Tosa, to: Quantization) -> Value:
        """Return exp of each element, times the reciprocal of their sum.

        The exponentials have 15 bits for int8, else 23.
        """
        x = logits(t, self.of)
        is_short = to.dtype is DType.INT8
        if is_short and takes_int16_softmax(t, x, self.axis):
            return int16_shares(t, x, self.axis).integer(t, to)
        e = exponentials(t, x, self.axis, bits=15 if is_short else 23)
        total = t.reduce_sum(e, self.axis)
        inverse = reciprocal(t, total)
        shifted = t.left_shift(e, inverse.shift)
        shares = t.mul(shifted, inverse.mantissa, shift=31)
        return Scaled(shares, Scale(2.0**-FRACTION)).integer(t, to)

    def real(self, t: Tosa) -> Value:
        """Return the softmax of the real numbers of ``of``, by the float rule."""
        float_rule = lowering_of(aten.softmax.int)
        x = self.of.real(t)
        result: Value = float_rule(t, x, self.axis, None)
        return result

    def reach(self, t: Tosa, least: float = -math.inf) -> float:
        """Return the largest absolute value: a softmax is at most 1."""
        return 1.0


def softmax_of(t: Tosa, x: Lazy, dim: int) -> Lazy:
    """Return the softmax of x [*S] along ``dim``, as a lazy value.

    Raises Unsupported if x is not quantized, or if the sum of exponentials is too
    large. This is checked here already: once ``integer`` is called, this call can no
    longer be computed in floats instead.
    """
    y = Softmax(x, dim)
    t.refuse_unless(x.reach(t, HIDES) < math.inf, _UNKNOWN)
    _bits_in_sum(t, x, y.axis)
    return y


def logits(t: Tosa, x: Lazy) -> Scaled:
    """Return the operand of a softmax as integers.

    Raises Unsupported if x is not quantized. Elements that a mask hides become the
    smallest integer, MARGIN below all others. If a mask hides a whole row, its elements
    are equal, as they are in torch if the mask adds the lowest number of fp32.
    """
    most = x.reach(t, HIDES)
    t.refuse_unless(most < math.inf, _UNKNOWN)
    if not isinstance(x, Shifted) and x.reach(t) <= most:
        # no element is hidden
        return addend(t, x)
    step = (most + MARGIN) / 2.0**BITS
    return in_steps(t, x, step, most=1 << BITS)


def exponentials(t: Tosa, x: Scaled, axis: int, bits: int) -> Value:
    """Return exp(x - the largest x along ``axis``), int32 of at most ``bits`` bits.

    The sum along the axis is below 2**30.
    """
    bits = min(_bits_in_sum(t, x, axis), bits)
    distance = _distance_from_largest(t, x, axis)
    if x.q.dtype is not DType.INT8:
        return exp_of(t, Scaled(distance, x.scale), bits)
    # distances of int8 are -255 .. 0: one table lookup each. The index -128 is the
    # distance -255
    with t.proven(range_of_type(DType.INT8)):
        index = t.add(distance, 127)
    table = exp_table(x.scale.factor, bits)
    return looked_up(t, t.cast(index, DType.INT8), table)


def _bits_in_sum(t: Tosa, x: Value, axis: int) -> int:
    """Return how many bits an exponential may have for a 30-bit sum along ``axis``.

    Raises Unsupported if these are fewer than 15.
    """
    count = greatest(x.shape[axis])
    room = 30 - math.ceil(math.log2(count))
    t.refuse_unless(
        room >= 15, f"a softmax over up to {count} elements has too large a sum"
    )
    return room


def _distance_from_largest(t: Tosa, x: Scaled, axis: int) -> Value:
    """Return x minus the largest x along ``axis``, as int32."""
    elements = t.cast(x.q, DType.INT32)
    largest = t.reduce_max(x.q, axis)
    return t.sub(elements, t.cast(largest, DType.INT32))


def log_softmax_of(t: Tosa, x: Lazy, dim: int) -> Lazy:
    """x [*S] -> [*S]: d - ln(sum(exp(d))), where d is x minus its largest element."""
    distance, total = _logarithm_of_sum(t, logits(t, x), axis_of(dim, x.rank))
    (left, right), step = aligned(t, [distance, total])
    return Scaled(t.sub(left, right), Scale(step))


def _logarithm_of_sum(t: Tosa, x: Scaled, axis: int) -> tuple[Scaled, Scaled]:
    """Return (d, ln(sum(exp(d)))), where d is x minus the largest x along ``axis``."""
    distance = Scaled(_distance_from_largest(t, x, axis), x.scale)
    bits = min(_bits_in_sum(t, x, axis), 23)
    total = t.reduce_sum(exp_of(t, distance, bits), axis)
    log = logarithm(t, total, exp_one(bits))
    # the largest element is exp(0) = 1, so the sum is from 1 to N, and its logarithm
    # from 0 to log(N)
    bits_of_count = math.ceil(math.log2(greatest(x.shape[axis])) + 1)
    log.q.range = (-1, bits_of_count << LOG_FRACTION)
    return distance, log


@lowers(aten.softmax.int, aten._softmax.default, on=Lazy)
def softmax(
    t: Tosa,
    self: Lazy,
    dim: int,
    dtype: torch.dtype | None = None,
    half_to_float: bool = False,
) -> Lazy:
    """[*S] -> [*S]"""
    expect_fp32(t, "a softmax", dtype)
    return softmax_of(t, self, dim)


@lowers(aten.log_softmax.int, aten._log_softmax.default, on=Lazy)
def log_softmax(
    t: Tosa,
    self: Lazy,
    dim: int,
    dtype: torch.dtype | None = None,
    half_to_float: bool = False,
) -> Lazy:
    """[*S] -> [*S]"""
    expect_fp32(t, "a log_softmax", dtype)
    return log_softmax_of(t, self, dim)


@lowers(aten.logsumexp.default, on=Lazy)
def logsumexp(t: Tosa, self: Lazy, dim: Sequence[int], keepdim: bool) -> Lazy:
    """[*A,N,*B] -> [*A,*B]; the largest element plus ln(sum(exp(x - largest)))"""
    axes = axes_of(dim, self.rank)
    t.refuse_unless(len(axes) == 1, "a logsumexp over several axes")
    (axis,) = axes
    x = logits(t, self)
    _, log = _logarithm_of_sum(t, x, axis)
    largest = x.with_integers(t.reduce_max(x.q, axis))
    (left, right), step = aligned(t, [largest, log])
    sums = t.add(left, right)
    if not keepdim:
        shape = (*sums.shape[:axis], *sums.shape[axis + 1 :])
        sums = t.reshape(sums, shape)
    return Scaled(sums, Scale(step))
