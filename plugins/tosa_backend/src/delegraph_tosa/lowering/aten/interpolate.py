"""Interpolates by weighted sums of input elements at constant positions.

Each output is a sum of input elements, called taps. Along one axis, linear
interpolation has two taps: the elements before and after the output's centre. Positions
and weights are computed in fp32, as torch does.

``resize`` has interpolation that RESIZE can express. ``interpolate_dynamic`` has
positions that depend on sizes known at run time only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._ops import OpOverloadPacket

from ...ir.dynamic_sizes import is_dynamic
from ...ir.graph import Value
from ...ir.types import FLOATS, DType
from ..builder import Tosa
from ..geometry.interpolated_axis import Axis
from ..geometry.positions import picked
from ..promotion import converted
from ..registry import lowers
from ..torch_values.hints import by_size
from ..torch_values.symbolic_sizes import scaled
from . import interpolate_dynamic

aten = torch.ops.aten
f32 = np.float32


class Tap(NamedTuple):
    """One term of the weighted sums of all outputs along an axis.

    ``positions`` [out] in the input and ``weights`` [out] are numpy arrays. ``weights``
    of None is a weight of 1.
    """

    positions: Any
    weights: Any = None


Kind = Callable[[Axis, bool], list[Tap]]
"""A kind of interpolation: a function from an axis and ``corners`` to its taps.

``corners`` is torch's align_corners.
"""


def _limited_to_axis(positions: Any, axis: Axis) -> Any:
    """Return ``positions`` clamped to 0 .. size - 1 of the axis, as int64."""
    return np.clip(positions, 0, axis.size - 1).astype(np.int64)


def nearest(axis: Axis, corners: bool) -> list[Tap]:
    """Return the element in which an output starts, for torch's mode "nearest".

    Ignores ``corners``.
    """
    starts = np.arange(axis.out, dtype=f32)
    places = np.floor(starts * axis.step())
    return [Tap(_limited_to_axis(places, axis))]


def nearest_exact(axis: Axis, corners: bool) -> list[Tap]:
    """Return the element at an output's centre, for torch's mode "nearest-exact".

    Ignores ``corners``.
    """
    centres = np.arange(axis.out, dtype=f32) + f32(0.5)
    places = np.floor(centres * axis.step())
    return [Tap(_limited_to_axis(places, axis))]


def linear(axis: Axis, corners: bool) -> list[Tap]:
    """Return the elements around an output's centre, with linear weights."""
    places = np.maximum(axis.places(corners), f32(0))
    first = _limited_to_axis(np.floor(places), axis)
    second = _limited_to_axis(first + 1, axis)
    share = np.clip(places - first.astype(f32), f32(0), f32(1))
    return [Tap(first, f32(1) - share), Tap(second, share)]


def cubic(axis: Axis, corners: bool) -> list[Tap]:
    """Return four elements around an output's centre, with cubic weights.

    torch uses a = -0.75.
    """
    places = axis.places(corners)
    first = np.floor(places)
    share = places - first
    taps = []
    for offset in (-1, 0, 1, 2):
        positions = _limited_to_axis(first + offset, axis)
        distances = np.abs(share - f32(offset))
        taps.append(Tap(positions, _spline(distances, f32(-0.75))))
    return taps


def _spline(x: Any, a: np.float32) -> Any:
    """Return Keys' cubic kernel at distance x >= 0, with the parameter ``a``.

    (a + 2) x^3 - (a + 3) x^2 + 1 up to 1, a x^3 - 5 a x^2 + 8 a x - 4 a up to 2, and 0
    beyond.
    """
    inner = ((a + 2) * x - (a + 3)) * x * x + 1
    outer = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    beyond_one = np.where(x < 2, outer, 0)
    return np.where(x <= 1, inner, beyond_one).astype(f32)


def _spline_filter(x: Any) -> Any:
    """Return the cubic kernel at distance x, with the parameter of torch's antialias."""
    distances = np.abs(x).astype(f32)
    return _spline(distances, f32(-0.5))


def _linear_kernel(x: Any) -> Any:
    """Return the triangular kernel at distance x: max(1 - |x|, 0)."""
    return np.maximum(1 - np.abs(x), 0)


def _taps_of_filter(
    weight: Callable[[Any], Any], radius: np.float32, axis: Axis, corners: bool
) -> list[Tap]:
    """Return taps of the filter ``weight`` along ``axis``.

    ``weight`` is a function of the distance from the output's centre; it is 0 from
    ``radius`` on. If there are fewer outputs than inputs, the filter is widened by the
    step, the number of input elements per output.
    """
    step = axis.step(corners)
    widening = max(step, f32(1))
    reach = radius * widening
    centres = step * (np.arange(axis.out, dtype=f32) + f32(0.5))
    # output i reads the elements first[i] .. end[i] - 1; the centre of element j is at
    # j + 0.5
    first = np.maximum((centres - reach + f32(0.5)).astype(np.int64), 0)
    end = np.minimum((centres + reach + f32(0.5)).astype(np.int64), axis.size)
    # [outputs, taps]: the elements that an output reads, and some beyond its end where
    # other outputs read more
    counts = end - first
    positions = first[:, None] + np.arange(int(counts.max()))
    distances = (positions + f32(0.5) - centres[:, None]) / widening
    weights = weight(distances) * (positions < end[:, None])
    weights = (weights / weights.sum(1, keepdims=True)).astype(f32)
    positions, weights = _without_surplus_taps(counts, positions, weights)
    taps = []
    for tap_positions, tap_weights in zip(positions.T, weights.T, strict=True):
        taps.append(Tap(_limited_to_axis(tap_positions, axis), tap_weights))
    return taps


def _without_surplus_taps(counts: Any, positions: Any, weights: Any) -> tuple[Any, Any]:
    """Return positions and weights [outputs, taps] that read no element in vain.

    Output i needs only the first ``counts[i]`` taps. All others have weight 0, but would
    still read their elements, and 0 * inf is NaN. So they repeat the last needed element
    and share its weight: weights [w, 0, 0] become [w/2, w/4, w/4], all exact.
    """
    taps = np.arange(positions.shape[1])
    last = (counts - 1)[:, None]  # [outputs, 1]: the last tap that an output needs
    surplus = len(taps) - 1 - last
    weight_of_last = np.take_along_axis(weights, last, 1)
    # 1/2 for the last needed tap, then 1/4, 1/8, ..; the final two are equal, so that
    # the sum is 1
    halvings = np.minimum(taps - last + 1, surplus)
    shares = weight_of_last * f32(2) ** -halvings
    weights = np.where(taps < last, weights, shares).astype(f32)
    return np.minimum(positions, positions[:, :1] + last), weights


def linear_filter(axis: Axis, corners: bool) -> list[Tap]:
    """Return taps that average all elements under a triangle (antialias)."""
    return _taps_of_filter(_linear_kernel, f32(1), axis, corners)


def cubic_filter(axis: Axis, corners: bool) -> list[Tap]:
    """Return taps that average all elements under a cubic kernel (antialias)."""
    return _taps_of_filter(_spline_filter, f32(2), axis, corners)


def interpolated(
    t: Tosa, x: Value, axes: Sequence[Axis], kind: Kind, corners: bool = False
) -> Value:
    """x [N,C,*S] -> [N,C,*S'], interpolated along one axis after the other.

    Weighted sums are in fp32. Raises Unsupported for weighted sums of integers, and for
    antialias if a size is known at run time only.
    """
    y = x
    is_weighted = kind not in (nearest, nearest_exact)
    for number, axis in enumerate(axes, start=2):
        # eager does not filter an axis that keeps its size
        if kind in (linear_filter, cubic_filter) and axis.size == axis.out:
            continue
        if is_weighted and not t.weighs_integers:
            t.refuse_unless(
                x.dtype in FLOATS,
                f"interpolation of {x.dtype} between elements is not lowered",
            )
            y = converted(t, y, DType.FP32)
        if not is_dynamic(axis.size) and not is_dynamic(axis.out):
            y = _weighted(t, y, number, kind(axis, corners))
            continue
        text = (
            f"how many elements an output covers depends on {axis.size}, which is"
            " known at run time only"
        )
        why = by_size(text, "resize with antialias=False")
        t.refuse_unless(kind in AT_RUN_TIME, why)
        t.refuse_unless(not is_weighted or not t.weighs_integers, why)
        taps = AT_RUN_TIME[kind](t, axis, corners)
        y = interpolate_dynamic.weighted(t, y, number, taps)
    return converted(t, y, x.dtype)


AT_RUN_TIME: dict[Kind, Callable[[Tosa, Axis, bool], list[interpolate_dynamic.Tap]]] = {
    nearest: interpolate_dynamic.nearest,
    nearest_exact: interpolate_dynamic.nearest_exact,
    linear: interpolate_dynamic.linear,
    cubic: interpolate_dynamic.cubic,
}
"""Kind of interpolation -> the function that computes its taps at run time.

Antialias is missing: its number of taps depends on the sizes.
"""


def _weighted(t: Tosa, x: Value, axis: int, taps: list[Tap]) -> Value:
    """x [*A,N,*B] -> [*A,N',*B], the weighted sum of the taps along ``axis``"""
    all_positions = np.arange(x.shape[axis])
    axes_after = x.rank - axis - 1
    total: Value | None = None
    for positions, weights in taps:
        if np.array_equal(positions, all_positions):
            part = x
        else:
            part = picked(t, x, axis, positions)
        if weights is not None:
            column = weights.reshape(len(weights), *[1] * axes_after)
            part = t.mul(part, t.literal(column.astype(f32), DType.FP32))
        total = part if total is None else t.add(total, part)
    assert total is not None
    return total


def axes_of(
    x: Value, output_size: Sequence[int] | None, scales: Sequence[float | None] | None
) -> list[Axis]:
    """Return the spatial axes of x [N,C,*S] with output sizes and scales.

    Without ``output_size``, the output sizes follow from the scales.
    """
    axes = []
    for number, size in enumerate(x.shape[2:]):
        scale = None if scales is None else scales[number]
        if output_size is not None:
            out = output_size[number]
        else:
            assert scale is not None
            out = scaled(size, scale)
        axes.append(Axis(size, out, scale))
    return axes


def _register(kind: Kind, packet: OpOverloadPacket) -> None:
    """Register the rules of both overloads of ``packet``, which interpolates by ``kind``."""

    @lowers(packet.vec)
    def with_scale_factors(
        t: Tosa,
        input: Value,
        output_size: Sequence[int] | None,
        scale_factors: Sequence[float] | None,
        align_corners: bool = False,
    ) -> Value:
        """[N,C,*S] -> [N,C,*S']"""
        axes = axes_of(input, output_size, scale_factors)
        return interpolated(t, input, axes, kind, align_corners)

    @lowers(packet.default)
    def with_scales(
        t: Tosa,
        self: Value,
        output_size: Sequence[int],
        align_corners: bool = False,
        scales: float | None = None,
        scales_d: float | None = None,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Value:
        """[N,C,*S] -> [N,C,*S']"""
        if self.rank == 3:
            factors = [scales]
        elif self.rank == 4:
            factors = [scales_h, scales_w]
        else:
            factors = [scales_d, scales_h, scales_w]
        axes = axes_of(self, output_size, factors)
        return interpolated(t, self, axes, kind, align_corners)


# ``resize`` has the rules of upsample_nearest2d and upsample_bilinear2d
_register(nearest, aten.upsample_nearest1d)
_register(nearest, aten.upsample_nearest3d)
_register(nearest_exact, aten._upsample_nearest_exact1d)
_register(nearest_exact, aten._upsample_nearest_exact2d)
_register(nearest_exact, aten._upsample_nearest_exact3d)
_register(linear, aten.upsample_linear1d)
_register(linear, aten.upsample_trilinear3d)
_register(cubic, aten.upsample_bicubic2d)
_register(linear_filter, aten._upsample_bilinear2d_aa)
_register(cubic_filter, aten._upsample_bicubic2d_aa)
