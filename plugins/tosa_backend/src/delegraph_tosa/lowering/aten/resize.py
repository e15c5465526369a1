"""Interpolation of images by RESIZE, where it computes what torch computes.

Along each axis, RESIZE reads output pixel o at input position ``(o * d + offset) / n``.
The ratio d / n is input pixels per output pixel; the specification calls n and d
scale_n and scale_d. Its ``border`` determines the output's size, so it follows from the
sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch
from delegraph.errors import Unsupported

from ...ir.dynamic_sizes import is_dynamic
from ...ir.graph import Value
from ...ir.types import ResizeMode
from ..builder import Tosa
from ..geometry.layout import NCHW, NHWC, Pair, pair
from ..registry import lowers
from ..torch_values.symbolic_sizes import scaled
from . import interpolate
from .shape import slice_axis

aten = torch.ops.aten


class Axis(NamedTuple):
    """Arguments of RESIZE along one axis: ratio d / n, ``offset`` and ``border``.

    Offset and border are in 1 / n input pixels.
    """

    n: int
    d: int
    offset: int
    border: int


def ratio(t: Tosa, size: int, out: int, scale: float | None) -> Fraction:
    """Return input pixels per output pixel, exactly: size / out or 1 / scale."""
    if scale is None or scale <= 0:
        return _ratio_of_sizes(t, size, out)
    # RESIZE takes a scale_n of up to 2048
    fraction = Fraction(scale).limit_denominator(2048)
    t.refuse_unless(
        float(fraction) == scale,
        f"the scale factor {scale} is no fraction that RESIZE can express",
    )
    return 1 / fraction


def _ratio_of_sizes(t: Tosa, size: int, out: int) -> Fraction:
    """Return size / out.

    Raises Unsupported for sizes known at run time only, unless one is a known multiple
    of the other: s0 and 2*s0 have the ratio 1/2.
    """
    if not is_dynamic(size) and not is_dynamic(out):
        return Fraction(size, out)
    upscale = out // size
    downscale = size // out
    if not is_dynamic(upscale) and upscale * size == out:
        return Fraction(1, upscale)
    t.refuse_unless(
        not is_dynamic(downscale) and downscale * out == size,
        f"how {size} relates to {out} is known at run time only",
    )
    return Fraction(downscale)


def nearest(t: Tosa, size: int, out: int, scale: float | None) -> Axis:
    """Return arguments that read input pixel floor(o * ratio), as torch does.

    RESIZE rounds to the nearest pixel instead of down, so the offset is minus half a
    pixel. If each pixel is repeated a whole number of times, larger offsets (by less
    than d) read the same pixels. Ethos-U55 takes only that of half-pixel centres.
    Raises Unsupported if torch takes other pixels, because it rounds in fp32.
    """
    step = ratio(t, size, out, scale)
    n = 2 * step.denominator
    d = 2 * step.numerator
    t.refuse_unless(
        _same_pixels(size, out, scale, step),
        f"torch rounds differently when it resizes {size} to {out}",
    )
    repeats_pixels = step.numerator == 1
    offset = (d - n) // 2 if repeats_pixels else -n // 2
    return _axis(t, size, out, n, d, offset)


def _same_pixels(size: int, out: int, scale: float | None, step: Fraction) -> bool:
    """Return whether torch, which computes in fp32, takes the pixels floor(o * step).

    ``step`` is exact.
    """
    if is_dynamic(size) or is_dynamic(out):
        # a product with a power of two is exact in fp32, and one of the numbers is 1
        return (step.numerator * step.denominator).bit_count() == 1
    if scale is None or scale <= 0:
        factor = np.float32(size) / np.float32(out)
    else:
        factor = np.float32(1 / scale)
    positions = np.arange(out)
    of_torch = (positions.astype(np.float32) * factor).astype(np.int64)
    exact = positions * step.numerator // step.denominator
    # both stop at the last pixel
    last = size - 1
    return bool((np.minimum(of_torch, last) == np.minimum(exact, last)).all())


def bilinear(t: Tosa, size: int, out: int, scale: float | None, corners: bool) -> Axis:
    """Return arguments that read output pixel o at (o + 1/2) * ratio - 1/2.

    With ``corners`` (align_corners) it is read at o * (size - 1) / (out - 1).
    """
    if corners:
        step = _ratio_of_sizes(t, size - 1, out - 1)
        return _axis(t, size, out, step.denominator, step.numerator, 0)
    step = ratio(t, size, out, scale)
    n = 2 * step.denominator
    d = 2 * step.numerator
    return _axis(t, size, out, n, d, (d - n) // 2)


def _axis(t: Tosa, size: int, out: int, n: int, d: int, offset: int) -> Axis:
    """Return the arguments of an axis, with a border that gives ``out`` pixels.

    Raises Unsupported if the border is known at run time only: RESIZE has it as a
    constant.
    """
    border = (out - 1) * d - (size - 1) * n + offset
    t.refuse_unless(
        not is_dynamic(border),
        f"RESIZE has its border at compile time, and {border} is known at run time"
        " only",
    )
    return Axis(n, d, offset, border)


_UNCHANGED = Axis(1, 1, 0, 0)
"""The arguments of an axis that RESIZE does not change."""


def resized(t: Tosa, x: Value, axes: Sequence[Axis], mode: ResizeMode) -> Value:
    """x [N,C,H,W] -> [N,C,H',W'] by RESIZE with ``axes`` for H and W.

    Return x itself if both are unchanged.
    """
    height, width = axes
    if height == width == _UNCHANGED:
        return x
    image = t.transpose(x, NHWC)
    scale = (height.n, height.d, width.n, width.d)
    offset = (height.offset, width.offset)
    border = (height.border, width.border)
    y = t.resize(image, scale, offset, border, mode)
    return t.transpose(y, NCHW)


def upsampled(
    t: Tosa,
    x: Value,
    out: Pair,
    scales: Sequence[float | None],
    align_corners: bool | None,
) -> Value:
    """x [N,C,H,W] -> [N,C,*out], by RESIZE if possible, else by ``interpolate``.

    If ``align_corners`` is None, the nearest elements are taken. Otherwise the
    interpolation is bilinear.
    """
    takes_nearest = align_corners is None
    mode = ResizeMode.NEAREST if takes_nearest else ResizeMode.BILINEAR
    corners = bool(align_corners)
    try:
        return _by_resize(t, x, out, scales, mode, corners)
    except Unsupported:
        kind = interpolate.nearest if takes_nearest else interpolate.linear
        axes = interpolate.axes_of(x, out, scales)
        return interpolate.interpolated(t, x, axes, kind, corners)


def _by_resize(
    t: Tosa,
    x: Value,
    out: Pair,
    scales: Sequence[float | None],
    mode: ResizeMode,
    corners: bool,
) -> Value:
    """x [N,C,H,W] -> [N,C,*out] by RESIZE.

    Raises Unsupported if RESIZE cannot express the call.
    """
    repeats = [1, 1, 1, 1]
    axes = []
    for number, out_size, scale in zip((2, 3), out, scales, strict=True):
        size = x.shape[number]
        if size == 1 or (size == out_size and scale in (None, 1.0)):
            # TILE repeats a single pixel; an axis that keeps its size is repeated once
            axes.append(_UNCHANGED)
            repeats[number] = out_size // size
        elif corners and out_size == 1:
            # the only output pixel is the first input pixel
            axes.append(_UNCHANGED)
            x = slice_axis(t, x, number, 0, 1)
        elif mode is ResizeMode.NEAREST:
            axes.append(nearest(t, size, out_size, scale))
        else:
            axes.append(bilinear(t, size, out_size, scale, corners))
    y = resized(t, x, axes, mode)
    return t.tile(y, repeats)


@lowers(aten.upsample_nearest2d.default, aten.upsample_bilinear2d.default)
def upsample2d(
    t: Tosa,
    self: Value,
    output_size: Sequence[int],
    scales_h: float | None,
    scales_w: float | None,
    align_corners: bool | None = None,
) -> Value:
    """[N,C,H,W] -> [N,C,H',W']; the nearest element, or bilinear where the operator has
    ``align_corners``
    """
    return upsampled(t, self, pair(output_size), (scales_h, scales_w), align_corners)


@lowers(aten.upsample_nearest2d.vec, aten.upsample_bilinear2d.vec)
def upsample2d_by_factors(
    t: Tosa,
    input: Value,
    output_size: Sequence[int] | None,
    scale_factors: Sequence[float] | None,
    align_corners: bool | None = None,
) -> Value:
    """[N,C,H,W] -> [N,C,H',W']; the nearest element, or bilinear where the operator has
    ``align_corners``
    """
    if output_size is not None:
        return upsampled(t, input, pair(output_size), (None, None), align_corners)
    assert scale_factors is not None
    height = scaled(input.shape[2], scale_factors[0])
    width = scaled(input.shape[3], scale_factors[1])
    return upsampled(t, input, (height, width), scale_factors, align_corners)
