"""Samples images and volumes at computed places, by a GATHER per neighbour.

A *place* is a position along one axis, a float in units of elements: 1.5 lies between
the elements 1 and 2. The result at a place is a weighted sum of its neighbours, called
*taps*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch

from ...ir.graph import Value
from ...ir.types import DType
from ..builder import Tosa
from ..geometry.layout import channels_first, channels_last
from ..promotion import converted
from ..registry import lowers
from .rounding import nearest

aten = torch.ops.aten

# torch's numbers of interpolation modes (0 is linear) and paddings
NEAREST = 1
BICUBIC = 2
ZEROS = 0
BORDER = 1
REFLECTION = 2


class Grid:
    """Settings of a call: the ``sizes`` of the input's axes, padding and alignment.

    The last axis comes first in ``sizes``, as in the grid. ``padding`` is ZEROS, BORDER
    or REFLECTION. ``corners`` is torch's align_corners: whether -1 and 1 are the
    centres of the outermost elements, or their outer edges.
    """

    def __init__(
        self, t: Tosa, sizes: Sequence[int], padding: int, corners: bool
    ) -> None:
        """Store the settings; ``sizes`` come in the order of the input's axes."""
        self.t = t
        self.sizes = sizes[::-1]
        self.padding = padding
        self.corners = corners

    def place(self, coordinate: Value, size: int) -> Value:
        """Convert a ``coordinate`` from -1 to 1 to a place on an axis of ``size``.

        NaN counts as -1.
        """
        t = self.t
        coordinate = t.select(t.equal(coordinate, coordinate), coordinate, -1.0)
        raised = t.add(coordinate, 1)
        if self.corners:
            return t.mul(raised, (size - 1) / 2)
        twice = t.sub(t.mul(raised, size), 1)
        return t.mul(twice, 0.5)

    def padded(self, place: Value, size: int) -> Value:
        """Return ``place`` moved into the tensor by border or reflection padding.

        With zero padding, it does not move.
        """
        if self.padding == ZEROS:
            return place
        if self.padding == REFLECTION:
            # mirrored at the centres of the outermost elements, or at their outer edges
            if self.corners:
                place = self._reflected(place, 0, size - 1)
            else:
                place = self._reflected(place, -0.5, size - 0.5)
        return self.t.clamp(place, 0, size - 1)

    def _reflected(self, place: Value, low: float, high: float) -> Value:
        """Reflect ``place`` at ``low`` and ``high`` until it lies between them."""
        t = self.t
        span = high - low
        if span == 0:
            return t.mul(place, 0)
        # the distance from ``low`` is a number of whole spans, and a rest
        distance = t.abs(t.sub(place, low))
        spans = t.floor(t.mul(distance, 1 / span))
        rest = t.sub(distance, t.mul(spans, span))
        # an odd number of spans ends at ``high``, and the rest leads back from there
        half = t.mul(spans, 0.5)
        is_odd = t.greater(half, t.floor(half))
        from_low = t.select(is_odd, t.sub(span, rest), rest)
        return t.add(from_low, low)


def _column(t: Tosa, grid: Value, axis: int) -> Value:
    """Return the coordinates of one axis: grid [N,P,axes] -> [N,P]."""
    n, places, _ = grid.shape
    column = t.slice(grid, (0, 0, axis), (n, places, 1))
    return t.reshape(column, (n, places))


class Tap(NamedTuple):
    """A neighbour along one axis: its place [N,P] as float, and its weight [N,P].

    A weight of None is 1.
    """

    place: Value
    weight: Value | None = None


def _taps(g: Grid, place: Value, size: int, mode: int) -> list[Tap]:
    """Return the neighbours of ``place`` [N,P] on an axis of ``size``."""
    t = g.t
    if mode == BICUBIC:
        return _four_neighbours(g, place, size)
    place = _within_int32(t, g.padded(place, size), size)
    if mode == NEAREST:
        return [Tap(nearest(t, place))]
    return _two_neighbours(t, place)


def _within_int32(t: Tosa, place: Value, size: int) -> Value:
    """Return ``place`` clamped to -2 .. size + 1, which int32 holds.

    Beyond these limits every neighbour is padding, so the result is the same.
    """
    return t.clamp(place, -2, size + 1)


def _two_neighbours(t: Tosa, place: Value) -> list[Tap]:
    """Return the elements before and after ``place``, with linear weights."""
    first = t.floor(place)
    share = t.sub(place, first)
    first_tap = Tap(first, t.sub(1, share))
    second_tap = Tap(t.add(first, 1), share)
    return [first_tap, second_tap]


def _four_neighbours(g: Grid, place: Value, size: int) -> list[Tap]:
    """Return the four elements around ``place``, weighted by the cubic kernel.

    As in torch, padding moves each of the four, not ``place``.
    """
    t = g.t
    first = t.floor(place)
    share = t.sub(place, first)
    taps: list[Tap] = []
    for offset, weight in zip((-1, 0, 1, 2), _spline(t, share), strict=True):
        padded = g.padded(t.add(first, offset), size)
        taps.append(Tap(_within_int32(t, padded, size), weight))
    return taps


def _spline(t: Tosa, share: Value) -> list[Value]:
    """Return the weights of four neighbours by Keys' cubic kernel, with a = -0.75.

    ``share`` s is the position between the second and the third neighbour, from 0 to 1.
    The distances of the four are 1 + s, s, 1 - s and 2 - s.
    """
    rest = t.sub(1, share)
    return [
        _outer_weight(t, t.add(share, 1)),
        _inner_weight(t, share),
        _inner_weight(t, rest),
        _outer_weight(t, t.add(rest, 1)),
    ]


def _inner_weight(t: Tosa, x: Value) -> Value:
    """Return the weight at a distance x up to 1: (1.25 x - 2.25) x x + 1.

    That is (a + 2) x^3 - (a + 3) x^2 + 1 for a = -0.75.
    """
    y = t.sub(t.mul(x, 1.25), 2.25)
    y = t.mul(t.mul(y, x), x)
    return t.add(y, 1)


def _outer_weight(t: Tosa, x: Value) -> Value:
    """Return the weight at a distance x from 1 to 2: ((-0.75 x + 3.75) x - 6) x + 3.

    That is a x^3 - 5 a x^2 + 8 a x - 4 a for a = -0.75.
    """
    y = t.add(t.mul(x, -0.75), 3.75)
    y = t.sub(t.mul(y, x), 6)
    return t.add(t.mul(y, x), 3)


def _weighted_sum(g: Grid, values: Value, taps: Sequence[list[Tap]]) -> Value:
    """values [N,K,C], taps of each axis -> [N,P,C]: the sum over combinations of taps.

    Two taps for each of two axes have four combinations: the corners of a square.
    """
    t = g.t
    total: Value | None = None
    for corner in product(*taps):
        index = _flat_index(g, [tap.place for tap in corner])
        part = t.gather(values, index)
        weight = _weight(g, corner)
        if weight is not None:
            part = t.mul(part, t.reshape(weight, (*weight.shape, 1)))
        total = part if total is None else t.add(total, part)
    assert total is not None
    return total


def _flat_index(g: Grid, places: Sequence[Value]) -> Value:
    """places [N,P] for each axis -> int32 [N,P], flat indices into an image.

    The places are those of taps, which are whole numbers in floats. Places outside of
    the tensor are moved to its edge; ``_weight`` is 0 for them.
    """
    t = g.t
    flat: Value | None = None
    # the grid has the last axis first: reversed, (z, y, x) give (z * H + y) * W + x
    for place, size in zip(reversed(places), reversed(g.sizes), strict=True):
        index = t.cast(t.clamp(place, 0, size - 1), DType.INT32)
        if flat is None:
            flat = index
        else:
            flat = t.add(t.mul(flat, size), index)
    assert flat is not None
    return flat


def _weight(g: Grid, corner: Sequence[Tap]) -> Value | None:
    """Return the weight [N,P] of one combination of taps: the product of their weights.

    None is a weight of 1. With zero padding, the weight is 0 outside of the tensor.
    """
    t = g.t
    weight: Value | None = None
    for tap in corner:
        # in mode nearest, all weights are None
        if weight is None or tap.weight is None:
            weight = tap.weight
        else:
            weight = t.mul(weight, tap.weight)
    if g.padding != ZEROS:
        return weight
    for tap, size in zip(corner, g.sizes, strict=True):
        is_after_start = t.greater_equal(tap.place, 0)
        is_before_end = t.greater_equal(size - 1, tap.place)
        is_inside = t.logical_and(is_after_start, is_before_end)
        if weight is None:
            weight = t.like(1, tap.place)
        weight = t.select(is_inside, weight, 0)
    return weight


@lowers(
    aten.grid_sampler.default,
    aten.grid_sampler_2d.default,
    aten.grid_sampler_3d.default,
)
def grid_sampler(
    t: Tosa,
    input: Value,
    grid: Value,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Value:
    """input [N,C,*S], grid [N,*S',axes] from -1 to 1 -> [N,C,*S']

    The grid has the last axis first. The result is computed in fp32.
    """
    _, channels, *sizes = input.shape
    n, *out_sizes, axes = grid.shape
    g = Grid(t, sizes, padding_mode, align_corners)
    # grid [N,*S',axes] -> a place [N,P] along each axis, where P is the number of
    # outputs
    rows = converted(t, grid, DType.FP32)
    rows = t.reshape(rows, (n, math.prod(out_sizes), axes))
    taps = []
    for axis, size in enumerate(g.sizes):
        place = g.place(_column(t, rows, axis), size)
        taps.append(_taps(g, place, size, interpolation_mode))
    # input [N,C,*S] -> [N,K,C], as GATHER takes it: all K elements of an image,
    # channels last
    values = converted(t, input, DType.FP32)
    values = t.transpose(values, channels_last(input.rank))
    values = t.reshape(values, (n, math.prod(sizes), channels))
    # y [N,P,C] -> [N,C,*S']
    y = _weighted_sum(g, values, taps)
    y = t.reshape(y, (n, *out_sizes, channels))
    return converted(t, t.transpose(y, channels_first(y.rank)), input.dtype)
