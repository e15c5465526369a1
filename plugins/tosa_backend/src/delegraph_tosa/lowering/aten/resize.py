"""Interpolation of images by RESIZE.

RESIZE reads output pixel o at input position ``(o * d + offset) / n`` (specification: RESIZE). Its attribute scale is
the ratio d / n, input pixels per output pixel. ``border`` is then given by the size of the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch
from delegraph.errors import Unsupported

from ...ir.graph import Value
from ...ir.sizes import is_dynamic
from ...ir.types import ResizeMode
from ..builder import Tosa
from ..geometry.layout import NCHW, NHWC, Pair, pair
from ..registry import lowers
from ..torch_values.sizes import scaled
from . import interpolate

aten = torch.ops.aten


class Axis(NamedTuple):
    """The arguments of RESIZE along one axis.

    The ratio d / n, and ``offset`` and ``border`` in units of 1 / n input pixels.
    """

    n: int
    d: int
    offset: int
    border: int


def ratio(t: Tosa, size: int, out: int, scale: float | None) -> Fraction:
    """Input pixels per output pixel: from the sizes, or 1 / scale if the user gave a scale."""
    if scale is None or scale <= 0:
        return _ratio_of_sizes(t, size, out)
    exact = Fraction(scale).limit_denominator(2048)
    t.require(float(exact) == scale, f"the scale factor {scale} is no fraction that RESIZE can express")
    return 1 / exact


def _ratio_of_sizes(t: Tosa, size: int, out: int) -> Fraction:
    """size / out. If run time alone knows the sizes, one has to be a multiple of the other."""
    if not is_dynamic(size) and not is_dynamic(out):
        return Fraction(size, out)
    larger, smaller = out // size, size // out
    if not is_dynamic(larger) and larger * size == out:
        return Fraction(1, larger)
    t.require(
        not is_dynamic(smaller) and smaller * out == size, f"how {size} relates to {out} is known at run time only"
    )
    return Fraction(smaller)


def nearest(t: Tosa, size: int, out: int, scale: float | None) -> Axis:
    """Output pixel o is input pixel floor(o * ratio).

    RESIZE rounds to the nearest, so it starts half a pixel earlier.
    """
    step = ratio(t, size, out, scale)
    n, d = 2 * step.denominator, 2 * step.numerator
    t.require(_same_pixels(size, out, scale, step), f"torch rounds differently when it resizes {size} to {out}")
    return _axis(t, size, out, n, d, -step.denominator)


def _same_pixels(size: int, out: int, scale: float | None, step: Fraction) -> bool:
    """Whether the exact ratio ``step`` takes the pixels that torch takes, which multiplies in fp32."""
    if is_dynamic(size) or is_dynamic(out):
        # fp32 is exact for powers of two
        return (step.numerator * step.denominator).bit_count() == 1
    factor = np.float32(size) / np.float32(out) if scale is None or scale <= 0 else np.float32(1 / scale)
    positions = np.arange(out)
    rounded = np.minimum((positions.astype(np.float32) * factor).astype(np.int64), size - 1)
    return bool((rounded == np.minimum(positions * step.numerator // step.denominator, size - 1)).all())


def bilinear(t: Tosa, size: int, out: int, scale: float | None, corners: bool) -> Axis:
    """Output pixel o lies at (o + 1/2) * ratio - 1/2; with ``corners``, the centres of the corner pixels coincide."""
    if corners:
        step = _ratio_of_sizes(t, size - 1, out - 1)
        return _axis(t, size, out, step.denominator, step.numerator, 0)
    step = ratio(t, size, out, scale)
    n, d = 2 * step.denominator, 2 * step.numerator
    return _axis(t, size, out, n, d, (d - n) // 2)


def _axis(t: Tosa, size: int, out: int, n: int, d: int, offset: int) -> Axis:
    """The arguments along one axis; its border follows from the sizes."""
    border = (out - 1) * d - (size - 1) * n + offset
    t.require(not is_dynamic(border), f"RESIZE has its border at compile time, and {border} is known at run time only")
    return Axis(n, d, offset, border)


_AS_IT_IS = Axis(1, 1, 0, 0)
"""An axis that RESIZE leaves as it is."""


def resized(t: Tosa, x: Value, axes: Sequence[Axis], mode: ResizeMode) -> Value:
    """x [N,C,H,W] -> [N,C,H',W'] by RESIZE; nothing is made if it changes neither axis"""
    y, w = axes
    if y == w == _AS_IT_IS:
        return x
    scale = (y.n, y.d, w.n, w.d)
    image = t.resize(t.transpose(x, NHWC), scale, (y.offset, w.offset), (y.border, w.border), mode)
    return t.transpose(image, NCHW)


def upsampled(
    t: Tosa, x: Value, out: Pair, scales: Sequence[float | None], mode: ResizeMode, corners: bool = False
) -> Value:
    """x [N,C,H,W] -> [N,C,*out], by RESIZE where that can express it, else by weighted sums (``interpolate``)."""
    try:
        return _by_resize(t, x, out, scales, mode, corners)
    except Unsupported:
        kind = interpolate.nearest if mode is ResizeMode.NEAREST else interpolate.linear
        return interpolate.interpolated(t, x, interpolate.axes_of(x, out, scales), kind, corners)


def _by_resize(t: Tosa, x: Value, out: Pair, scales: Sequence[float | None], mode: ResizeMode, corners: bool) -> Value:
    """x [N,C,H,W] -> [N,C,*out] by RESIZE.

    RESIZE need not see an axis of one pixel, which is repeated, nor one whose only output pixel is the first input
    pixel.
    """
    repeats = [1, 1, 1, 1]
    axes = []
    for k, (size, wanted, scale) in enumerate(zip(x.shape[2:], out, scales, strict=True)):
        if size == 1 or (size == wanted and scale in (None, 1.0)):
            axes.append(_AS_IT_IS)
            repeats[2 + k] = wanted // size
        elif corners and wanted == 1:
            axes.append(_AS_IT_IS)
            kept = [wanted if axis == 2 + k else n for axis, n in enumerate(x.shape)]
            x = t.slice(x, (0, 0, 0, 0), kept)
        elif mode is ResizeMode.NEAREST:
            axes.append(nearest(t, size, wanted, scale))
        else:
            axes.append(bilinear(t, size, wanted, scale, corners))
    return t.tile(resized(t, x, axes, mode), repeats)


def _sizes(
    x: Value, output_size: Sequence[int] | None, scales: Sequence[float] | None
) -> tuple[Pair, list[float | None]]:
    """Height and width of the output, and the scales if the user gave those instead of sizes."""
    if output_size is not None:
        return pair(output_size), [None, None]
    assert scales is not None
    height, width = (scaled(size, scale) for size, scale in zip(x.shape[2:], scales, strict=True))
    return (height, width), list(scales)


@lowers(aten.upsample_nearest2d.default)
def upsample_nearest2d(
    t: Tosa, self: Value, output_size: Sequence[int], scales_h: float | None, scales_w: float | None
) -> Value:
    """[N,C,H,W] -> [N,C,H',W']"""
    return upsampled(t, self, pair(output_size), (scales_h, scales_w), ResizeMode.NEAREST)


@lowers(aten.upsample_nearest2d.vec)
def upsample_nearest2d_vec(
    t: Tosa, input: Value, output_size: Sequence[int] | None, scale_factors: Sequence[float] | None
) -> Value:
    """[N,C,H,W] -> [N,C,H',W']"""
    out, scales = _sizes(input, output_size, scale_factors)
    return upsampled(t, input, out, scales, ResizeMode.NEAREST)


@lowers(aten.upsample_bilinear2d.default)
def upsample_bilinear2d(
    t: Tosa,
    self: Value,
    output_size: Sequence[int],
    align_corners: bool,
    scales_h: float | None,
    scales_w: float | None,
) -> Value:
    """[N,C,H,W] -> [N,C,H',W']"""
    return upsampled(t, self, pair(output_size), (scales_h, scales_w), ResizeMode.BILINEAR, align_corners)


@lowers(aten.upsample_bilinear2d.vec)
def upsample_bilinear2d_vec(
    t: Tosa,
    input: Value,
    output_size: Sequence[int] | None,
    align_corners: bool,
    scale_factors: Sequence[float] | None,
) -> Value:
    """[N,C,H,W] -> [N,C,H',W']"""
    out, scales = _sizes(input, output_size, scale_factors)
    return upsampled(t, input, out, scales, ResizeMode.BILINEAR, align_corners)
