"""Transposed convolutions.

Each element of the input is multiplied by the kernel. The products are added in the
output, ``stride`` elements apart.

- Over two axes this is TRANSPOSE_CONV2D. That operator has no dilation, so zeros are
  put between the weight's elements. It has no groups, so there is one operator for each
  group.
- Over three axes, and where each channel is its own group, an ordinary convolution
  computes it. Its kernel is reversed, and zeros are put between the input's elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ...ir.graph import Value
from ..builder import Tosa
from ..geometry.layout import batched, channels_first, channels_last, numbers, unbatched
from ..geometry.window import framed, spread
from ..registry import lowers
from .conv import (
    concatenated,
    conv,
    equal_parts,
    group_biases,
    with_height,
    without_height,
)

aten = torch.ops.aten
Numbers = Sequence[int]


class TransposedAxis(NamedTuple):
    """An axis of a transposed convolution with N input elements.

    Its output has (N - 1) * stride + kernel + before + after elements. ``kernel`` is
    the kernel's size with its dilation. ``before`` and ``after`` are elements added to
    both ends of the output. torch's padding makes them negative: it cuts elements off.
    """

    kernel: int
    stride: int
    before: int
    after: int


def _transposed_axes(
    kernel: Numbers,
    stride: Numbers,
    padding: Numbers,
    output_padding: Numbers,
    dilation: Numbers,
) -> list[TransposedAxis]:
    """Return one ``TransposedAxis`` for each axis, from torch's arguments.

    ``output_padding`` adds elements after the output.
    """
    axes = []
    for number, size in enumerate(kernel):
        reach = dilation[number] * (size - 1) + 1
        before = -padding[number]
        after = output_padding[number] - padding[number]
        axes.append(TransposedAxis(reach, stride[number], before, after))
    return axes


def _transposed_convolution(
    t: Tosa,
    input: Value,
    weight: Value,
    bias: Value | None,
    axes: list[TransposedAxis],
    dilation: Numbers,
    groups: int,
) -> Value:
    """input [N,C,*S], weight [C,O/groups,*K], bias [O] -> [N,O,*S'], 2 or 3 axes"""
    t.expect_one_type("a convolution", input, weight, bias)
    if bias is None:
        bias = t.no_bias(input)
    for axis, step in enumerate(dilation, start=2):
        weight = spread(t, weight, axis, step)
    x = t.transpose(input, channels_last(input.rank))
    has_group_for_each_channel = groups > 1 and groups == input.shape[1]
    if len(axes) == 3 or has_group_for_each_channel:
        y = _by_convolution(t, x, weight, bias, axes, groups)
    else:
        y = _by_transpose_conv(t, x, weight, bias, axes, groups)
    return t.transpose(y, channels_first(y.rank))


def _by_transpose_conv(
    t: Tosa,
    x: Value,
    weight: Value,
    bias: Value,
    axes: list[TransposedAxis],
    groups: int,
) -> Value:
    """x [N,H,W,C], weight [C,O/groups,KH,KW] -> [N,H',W',O], by TRANSPOSE_CONV2D."""
    stride = tuple([axis.stride for axis in axes])
    out_pad: list[int] = []
    cut = [(0, 0)]
    for axis in axes:
        # out_pad must be greater than -kernel: if more elements have to be cut off,
        # SLICE removes them from the result
        least = 1 - axis.kernel
        before = max(axis.before, least)
        after = max(axis.after, least)
        out_pad += [before, after]
        cut.append((axis.before - before, axis.after - after))
    cut.append((0, 0))
    biases = group_biases(t, bias, groups)
    inputs = equal_parts(t, x, -1, groups)
    weights = equal_parts(t, weight, 0, groups)
    outputs = []
    for part, kernel, offset in zip(inputs, weights, biases, strict=True):
        ohwi = t.transpose(kernel, (1, 2, 3, 0))
        outputs.append(t.transpose_conv2d(part, ohwi, offset, tuple(out_pad), stride))
    return framed(t, concatenated(t, outputs, 3), cut)


def _by_convolution(
    t: Tosa,
    x: Value,
    weight: Value,
    bias: Value,
    axes: list[TransposedAxis],
    groups: int,
) -> Value:
    """x [N,*S,C], weight [C,O/groups,*K] -> [N,*S',O], by an ordinary convolution.

    Zeros are inserted between the elements of x.
    """
    frame = [(0, 0)]
    for number, axis in enumerate(axes, start=1):
        x = spread(t, x, number, axis.stride)
        if axis.kernel > 1:
            # the spatial axes of x begin at 1, those of the weight at 2
            weight = t.reverse(weight, number + 1)
        margin = axis.kernel - 1
        frame.append((margin + axis.before, margin + axis.after))
    frame.append((0, 0))
    x = framed(t, x, frame)
    no_padding = (0,) * (2 * len(axes))
    ones = (1,) * len(axes)
    # over two axes, each channel is a group
    if len(axes) == 2:
        hwcm = t.transpose(weight, (2, 3, 0, 1))
        return t.depthwise_conv2d(x, hwcm, bias, no_padding, ones, ones)
    biases = group_biases(t, bias, groups)
    inputs = equal_parts(t, x, -1, groups)
    weights = equal_parts(t, weight, 0, groups)
    outputs = []
    for part, kernel, offset in zip(inputs, weights, biases, strict=True):
        odhwi = t.transpose(kernel, (1, 2, 3, 4, 0))
        outputs.append(t.conv3d(part, odhwi, offset, no_padding, ones, ones))
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
    axes = _transposed_axes(
        weight.shape[2:],
        numbers(stride, rank),
        numbers(padding, rank),
        numbers(output_padding, rank),
        spacing,
    )
    x = batched(t, input, rank + 2)
    if rank > 1:
        y = _transposed_convolution(t, x, weight, bias, axes, spacing, groups)
        return unbatched(t, y, input)
    # a convolution over one axis is one over an image of height 1
    image = with_height(t, x)
    kernel_image = with_height(t, weight)
    image_axes = [TransposedAxis(kernel=1, stride=1, before=0, after=0), *axes]
    image_spacing = (1, *spacing)
    y = _transposed_convolution(
        t, image, kernel_image, bias, image_axes, image_spacing, groups
    )
    return unbatched(t, without_height(t, y), input)


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
