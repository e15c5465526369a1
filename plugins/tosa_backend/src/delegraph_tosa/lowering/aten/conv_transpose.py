"""Transposed convolutions: add the product of each element and the kernel.

Over two axes this is TRANSPOSE_CONV2D. That operator has no dilation, so zeros are put
between the weight's elements, and no groups, so there is one operator for each group.
Over three axes, and where each channel is its own group, the rule makes an ordinary
convolution: its kernel is reversed, and zeros are put between the input's elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import torch

from ...ir.graph import Value
from ..builder import Tosa
from ..geometry.layout import batched, channels_first, channels_last, numbers, unbatched
from ..geometry.window import framed, spread
from ..registry import lowers
from .conv import concatenated, conv, high, in_groups, low

aten = torch.ops.aten
Numbers = Sequence[int]


class Reach(NamedTuple):
    """An axis of a transposed convolution.

    Its output has (N - 1) * stride + kernel + before + after elements. ``kernel`` is
    the kernel's size with its dilation. ``before`` and ``after`` are elements added to
    both ends of the output; negative numbers, which follow from padding, cut elements
    off.
    """

    kernel: int
    stride: int
    before: int
    after: int


def _reaches(
    kernel: Numbers,
    stride: Numbers,
    padding: Numbers,
    extra: Numbers,
    dilation: Numbers,
) -> list[Reach]:
    """Return one ``Reach`` for each axis, from torch's arguments.

    ``extra`` is its output_padding.
    """
    rows = zip(kernel, stride, padding, extra, dilation, strict=True)
    return [Reach(d * (k - 1) + 1, s, -p, e - p) for k, s, p, e, d in rows]


def transposed(
    t: Tosa,
    input: Value,
    weight: Value,
    bias: Value | None,
    axes: list[Reach],
    dilation: Numbers,
    groups: int,
) -> Value:
    """input [N,C,*S], weight [C,O/groups,*K], bias [O] -> [N,O,*S'], 2 or 3 axes"""
    t.expect_one_type("a convolution", input, weight, bias)
    bias = t.no_bias(input) if bias is None else bias
    for axis, step in enumerate(dilation, start=2):
        weight = spread(t, weight, axis, step)
    x = t.transpose(input, channels_last(input.rank))
    per_channel = groups == input.shape[1] > 1
    y = (
        _by_convolution(t, x, weight, bias, axes, groups)
        if len(axes) == 3 or per_channel
        else None
    )
    y = _by_transpose_conv(t, x, weight, bias, axes, groups) if y is None else y
    return t.transpose(y, channels_first(y.rank))


def _by_transpose_conv(
    t: Tosa, x: Value, weight: Value, bias: Value, axes: list[Reach], groups: int
) -> Value:
    """x [N,H,W,C], weight [C,O/groups,KH,KW] -> [N,H',W',O], by TRANSPOSE_CONV2Ds"""
    stride = tuple([a.stride for a in axes])
    # out_pad must be greater than -kernel: where more has to be cut off, SLICE cuts the
    # rest off the result
    pads = [(max(a.before, 1 - a.kernel), max(a.after, 1 - a.kernel)) for a in axes]
    rest = [
        (a.before - before, a.after - after)
        for a, (before, after) in zip(axes, pads, strict=True)
    ]
    out_pad = tuple(chain.from_iterable(pads))
    parts = in_groups(t, (x, -1), (weight, 0), bias, groups)
    outputs = [
        t.transpose_conv2d(p, t.transpose(w, (1, 2, 3, 0)), b, out_pad, stride)
        for p, w, b in parts
    ]
    return framed(t, concatenated(t, outputs, 3), [(0, 0), *rest, (0, 0)])


def _by_convolution(
    t: Tosa, x: Value, weight: Value, bias: Value, axes: list[Reach], groups: int
) -> Value:
    """x [N,*S,C], weight [C,O/groups,*K] -> [N,*S',O], a convolution of spread x

    Zeros are inserted between the elements.
    """
    for axis, reach in enumerate(axes, start=1):
        x = spread(t, x, axis, reach.stride)
        weight = t.reverse(weight, axis + 1) if reach.kernel > 1 else weight
    x = framed(
        t,
        x,
        [
            (0, 0),
            *[(a.kernel - 1 + a.before, a.kernel - 1 + a.after) for a in axes],
            (0, 0),
        ],
    )
    no_padding = (0,) * (2 * len(axes))
    ones = (1,) * len(axes)
    # over two axes only a convolution with one group for each channel comes here
    if len(axes) == 2:
        return t.depthwise_conv2d(
            x, t.transpose(weight, (2, 3, 0, 1)), bias, no_padding, ones, ones
        )
    parts = in_groups(t, (x, -1), (weight, 0), bias, groups)
    outputs = [
        t.conv3d(p, t.transpose(w, (1, 2, 3, 4, 0)), b, no_padding, ones, ones)
        for p, w, b in parts
    ]
    return concatenated(t, outputs, 4)


@lowers(
    aten.conv_transpose1d.default,
    aten.conv_transpose2d.input,
    aten.conv_transpose3d.input,
)
def conv_transpose(
    t: Tosa,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Numbers,
    padding: Numbers,
    output_padding: Numbers,
    groups: int,
    dilation: Numbers,
) -> Value:
    """input [N,C,*S], weight [C,O/groups,*K], bias [O] -> [N,O,*S']"""
    rank = weight.rank - 2
    spacing = numbers(dilation, rank)
    step, margin, extra = (numbers(n, rank) for n in (stride, padding, output_padding))
    axes = _reaches(weight.shape[2:], step, margin, extra, spacing)
    x = batched(t, input, rank + 2)
    if rank == 1:
        # over one axis: an image of height 1
        axes = [Reach(1, 1, 0, 0), *axes]
        y = low(
            t,
            transposed(
                t, high(t, x), high(t, weight), bias, axes, (1, *spacing), groups
            ),
        )
    else:
        y = transposed(t, x, weight, bias, axes, spacing, groups)
    return unbatched(t, y, input)


@lowers(aten.convolution.default)
def convolution(
    t: Tosa,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    transposed: bool,
    output_padding: Numbers,
    groups: int,
) -> Value:
    """input [N,C,*S], weight [O,C/groups,*K], bias [O] -> [N,O,*S']

    A transposed weight is [C,O/groups,*K].
    """
    if transposed:
        return conv_transpose(
            t, input, weight, bias, stride, padding, output_padding, groups, dilation
        )
    return conv(t, input, weight, bias, stride, padding, dilation, groups)
