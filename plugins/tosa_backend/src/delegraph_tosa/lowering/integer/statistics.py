"""Running sums, variances, deviations and norms, by sums of squares in 32 bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ...ir.dynamic_sizes import greatest, is_dynamic
from ...ir.graph import Value
from ...ir.types import DType
from ..aten.reduce import axes_of, reduced
from ..aten.scan import scanned
from ..builder import Tosa
from ..geometry.layout import axis_of
from ..lazy.lazy_values import Lazy, Scaled, operand
from ..lazy.quantization import Scale
from ..ranges.value_ranges import range_of
from ..registry import lowers
from .arithmetic import lost_in_sum, summed
from .fixed_point import FRACTION, inverse_root
from .sums import addend, centred, expect_fp32

aten = torch.ops.aten
Dims = Sequence[int] | int | None


@lowers(aten.cumsum.default, on=Lazy)
def cumsum(t: Tosa, self: Lazy, dim: int, dtype: torch.dtype | None) -> Lazy:
    """[*A,N,*B] -> [*A,N,*B]; elements lose low bits if the sum of N elements would not
    fit into 32 bits
    """
    expect_fp32(t, "a sum", dtype)
    x = addend(t, self)
    count = x.shape[axis_of(dim, x.rank)] if x.rank else 1
    # the scale in which the sum of all N elements has at most 30 bits
    lost = lost_in_sum(t, x.size, count, bits=30)
    step = x.scale.factor * 2.0**lost
    most_of_one = math.ceil(x.size * x.scale.factor / step)
    most = most_of_one * greatest(count)
    sums = scanned(t, centred(t, x, step), dim, t.add, 0)
    sums.range = -most, most
    return Scaled(sums, Scale(step))


def sum_of_squares(t: Tosa, c: Value, axes: Sequence[int], keepdim: bool) -> Scaled:
    """Return the sum of the squares of c int32 [*S] over ``axes``, with 30 bits.

    Each square loses the low bits for which the sum has no room. Raises Unsupported if
    these are more than 62.
    """
    count = math.prod([c.shape[axis] for axis in axes])
    most = max(abs(end) for end in range_of(c)) ** 2
    lost = lost_in_sum(t, most, count, bits=30)
    t.refuse_unless(
        lost < 63, f"squares of {count} such elements have more than 64 bits"
    )
    squares = t.mul(c, c, shift=lost)
    total = reduced(t, squares, t.reduce_sum, axes, keepdim)
    # one more for the rounding
    total.range = 0, ((most >> lost) + 1) * greatest(count)
    return Scaled(total, Scale(2.0**lost))


def root(t: Tosa, x: Scaled) -> Scaled:
    """Return the square root of x, which has int32 >= 0, as int32.

    It is x * (1 / sqrt(x)), by ``inverse_root``.
    """
    # the root of an integer is (x << shift) * mantissa / 2**(15.5 + 29). The MUL
    # divides by 2**31, so the result has 44.5 - 31 = 13.5 fraction bits
    inverse = inverse_root(t, t.maximum(x.q, 1))
    shifted = t.left_shift(x.q, inverse.shift)
    y = t.mul(shifted, inverse.mantissa, shift=31)
    y.range = 0, 1 << FRACTION
    scale_of_root = math.sqrt(x.scale.factor)
    return Scaled(y, Scale(scale_of_root * 2.0**-13.5))


def _variance(
    t: Tosa, x: Scaled, dims: Dims, correction: float, keepdim: bool
) -> Scaled:
    """Return the variance of x over ``dims``.

    With n elements, c = n * x - sum is exact, and sum(c**2) = n**2 * (n - correction) *
    variance. Raises Unsupported if n is known at run time only, is not above
    ``correction``, or makes c too large for int32.
    """
    axes = axes_of(dims, x.rank)
    n = math.prod([x.shape[a] for a in axes])
    t.refuse_unless(
        not is_dynamic(n),
        "the number of elements of its variance is known at run time only",
    )
    t.refuse_unless(
        n > correction, f"a variance of {n} elements, less {correction}, is no number"
    )
    low, high = range_of(x.q)
    most = n * (high - low)
    t.refuse_unless(most < 1 << 31, f"a variance of {n} elements has more than 32 bits")
    q = t.cast(x.q, DType.INT32)
    multiples = t.mul(q, n)
    c = t.sub(multiples, reduced(t, q, t.reduce_sum, axes, keepdim=True))
    c.range = -most, most
    total = sum_of_squares(t, c, axes, keepdim)
    # c is in integers, so the variance of the real numbers has the factor scale**2
    divisor = n**2 * (n - correction) / x.scale.factor**2
    return Scaled(total.q, total.scale.over(divisor))


def _moments(
    t: Tosa, self: Lazy, dims: Dims, correction: float, keepdim: bool, rooted: bool
) -> tuple[Lazy, Lazy]:
    """Return (variance, mean) of ``self`` over ``dims``.

    With ``rooted``, returns (standard deviation, mean).
    """
    x = operand(t, self, "its input")
    spread = _variance(t, x, dims, correction, keepdim)
    axes = [dims] if isinstance(dims, int) else dims
    total, count = summed(t, x, axes, keepdim)
    mean = Scaled(total.q, total.scale.over(count))
    if rooted:
        spread = root(t, spread)
    return spread, mean


def _register_moments(packet: Any, rooted: bool, with_mean: bool) -> None:
    """Register the rule for the three overloads of var, std, var_mean or std_mean."""

    @lowers(packet.correction, packet.default, packet.dim, on=Lazy)
    def rule(
        t: Tosa,
        self: Lazy,
        dim: Dims = None,
        correction: float | None = None,
        unbiased: bool = True,
        keepdim: bool = False,
    ) -> Any:
        """[*S] -> [*S'], and the mean [*S'] for var_mean and std_mean"""
        if correction is None:
            correction = int(unbiased)
        spread, mean = _moments(t, self, dim, correction, keepdim, rooted)
        if with_mean:
            return spread, mean
        return spread


_register_moments(aten.var, rooted=False, with_mean=False)
_register_moments(aten.std, rooted=True, with_mean=False)
_register_moments(aten.var_mean, rooted=False, with_mean=True)
_register_moments(aten.std_mean, rooted=True, with_mean=True)


@lowers(aten.linalg_vector_norm.default, on=Lazy)
def linalg_vector_norm(
    t: Tosa, self: Lazy, ord: float, dim: Dims, keepdim: bool, dtype: torch.dtype | None
) -> Lazy:
    """[*S] -> [*S']; of order 1, 2 or infinity"""
    t.refuse_unless(
        ord in (1, 2, math.inf), f"a norm of order {ord} has no rule of its own"
    )
    expect_fp32(t, "a norm", dtype)
    x = addend(t, self)
    # integers without zero point: real = scale * c
    c = centred(t, x, x.scale.factor)
    axes = axes_of(dim, x.rank)
    if ord == 2:
        total = sum_of_squares(t, c, axes, keepdim)
        # squares of real numbers are scale**2 times those of integers: the scale is
        # divided by scale**-2
        scale = total.scale.over(x.scale.factor**-2)
        return root(t, Scaled(total.q, scale))
    magnitudes = Scaled(t.abs(c), x.scale)
    if ord == 1:
        total, _ = summed(t, magnitudes, axes, keepdim)
        return total
    largest = reduced(t, magnitudes.q, t.reduce_max, axes, keepdim)
    return Scaled(largest, x.scale)
