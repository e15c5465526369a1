"""Interpolates along an axis of dynamic size, with computed positions and weights.

The formulas are those of ``interpolate``, in fp32, as in torch. So are the terms: an
output is a weighted sum of input elements, its taps. GATHER reads the elements.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ...ir.dynamic_sizes import largest
from ...ir.graph import Value
from ...ir.types import DType
from ..builder import Tosa
from ..geometry.interpolated_axis import Axis
from .index import gathered
from .shape import replace_axis

SHARPNESS = -0.75
"""The parameter of torch's cubic kernel, often called a."""


class Tap(NamedTuple):
    """One term of the weighted sums of all outputs along an axis.

    ``positions`` [out] in the input and ``weights`` [out] are fp32. ``weights`` of None
    is a weight of 1.
    """

    positions: Value
    weights: Value | None = None


def weighted(t: Tosa, x: Value, axis: int, taps: list[Tap]) -> Value:
    """x [*A,N,*B] -> [*A,out,*B], the weighted sum of the taps along ``axis``"""
    axes_after = x.rank - axis - 1
    total: Value | None = None
    for positions, weights in taps:
        part = _elements_at(t, x, axis, positions)
        if weights is not None:
            factors = t.reshape(weights, weights.shape + (1,) * axes_after)
            part = t.mul(part, factors)
        total = part if total is None else t.add(total, part)
    assert total is not None
    return total


def _elements_at(t: Tosa, x: Value, axis: int, positions: Value) -> Value:
    """x [*A,N,*B], positions fp32 [P] along ``axis`` -> [*A,P,*B]"""
    (count,) = positions.shape
    before = math.prod(x.shape[:axis])
    after = math.prod(x.shape[axis + 1 :])
    row = t.reshape(t.cast(positions, DType.INT32), (1, count))
    index = t.tile(row, (before, 1))
    values = t.reshape(x, (before, x.shape[axis], after))
    elements = gathered(t, values, index)
    return t.reshape(elements, replace_axis(x.shape, axis, count))


def nearest(t: Tosa, axis: Axis, corners: bool) -> list[Tap]:
    """Return the element in which an output starts, for torch's mode "nearest".

    Ignores ``corners``.
    """
    outputs = t.numbers(axis.out, DType.FP32)
    return [_nearest(t, axis, outputs)]


def nearest_exact(t: Tosa, axis: Axis, corners: bool) -> list[Tap]:
    """Return the element at an output's centre, for torch's mode "nearest-exact".

    Ignores ``corners``.
    """
    outputs = t.numbers(axis.out, DType.FP32)
    return [_nearest(t, axis, t.add(outputs, 0.5))]


def _nearest(t: Tosa, axis: Axis, outputs: Value) -> Tap:
    """Return the tap for fp32 positions ``outputs`` [out] in the output.

    They are scaled to positions in the input and rounded down, as in torch. From sizes
    of 2**18 on, the ratio of the sizes may be rounded otherwise than in torch: then the
    tap may be a neighbour.
    """
    places = t.mul(outputs, _step(axis, corners=False))
    return Tap(t.clamp(t.floor(places), 0, axis.size - 1))


def linear(t: Tosa, axis: Axis, corners: bool) -> list[Tap]:
    """Return the elements around an output's centre, with linear weights."""
    last = axis.size - 1
    places = t.maximum(_places(t, axis, corners), 0)
    first = t.minimum(t.floor(places), last)
    share = t.clamp(t.sub(places, first), 0, 1)
    first_tap = Tap(first, t.sub(1, share))
    second_tap = Tap(t.minimum(t.add(first, 1), last), share)
    return [first_tap, second_tap]


def cubic(t: Tosa, axis: Axis, corners: bool) -> list[Tap]:
    """Return four elements around an output's centre, with cubic weights."""
    places = _places(t, axis, corners)
    first = t.floor(places)
    share = t.sub(places, first)
    rest = t.sub(1, share)
    # the distances of the four are 1 + share, share, 1 - share and 2 - share
    weights = (
        _outer(t, t.add(share, 1)),
        _inner(t, share),
        _inner(t, rest),
        _outer(t, t.add(rest, 1)),
    )
    taps = []
    for offset, weight in zip((-1, 0, 1, 2), weights, strict=True):
        positions = t.clamp(t.add(first, offset), 0, axis.size - 1)
        taps.append(Tap(positions, weight))
    return taps


def _inner(t: Tosa, x: Value) -> Value:
    """Return Keys' cubic kernel at x from 0 to 1: ((a + 2) x - (a + 3)) x x + 1."""
    a = SHARPNESS
    y = t.sub(t.mul(x, a + 2), a + 3)
    y = t.mul(t.mul(y, x), x)
    return t.add(y, 1)


def _outer(t: Tosa, x: Value) -> Value:
    """Return Keys' cubic kernel at x from 1 to 2: ((a x - 5 a) x + 8 a) x - 4 a."""
    a = SHARPNESS
    y = t.sub(t.mul(x, a), 5 * a)
    y = t.add(t.mul(y, x), 8 * a)
    return t.sub(t.mul(y, x), 4 * a)


def _step(axis: Axis, corners: bool) -> float:
    """Return input elements per output element: ``Axis.step`` for dynamic sizes."""
    if corners:
        return (axis.size - 1) / largest(axis.out - 1, 1)
    if axis.scale is not None and axis.scale > 0:
        return float(np.float32(1 / axis.scale))
    return axis.size / axis.out


def _places(t: Tosa, axis: Axis, corners: bool) -> Value:
    """Return the positions [out] of the outputs' centres in the input, in elements."""
    outputs = t.numbers(axis.out, DType.FP32)
    step = _step(axis, corners)
    if corners:
        return t.mul(outputs, step)
    centres = t.add(outputs, 0.5)
    return t.sub(t.mul(centres, step), 0.5)
