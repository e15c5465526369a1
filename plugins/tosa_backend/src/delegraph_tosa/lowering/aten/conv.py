"""Convolutions.

TOSA's images are NHWC and its weights OHWI; depthwise ones are HWCM, where M is the
number of outputs for each channel. A convolution over one axis is one over images of
height 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...ir.graph import Value
from ..builder import Tosa
from ..geometry.layout import (
    HWOI,
    axis_of,
    batched,
    channels_first,
    channels_last,
    numbers,
    unbatched,
)
from ..geometry.window import Window, exact, windows
from ..registry import lowers

aten = torch.ops.aten
Numbers = Sequence[int]
LONGEST_LIST = 64
"""The most operands of a CONCAT at level 8K (MAX_TENSOR_LIST_SIZE)."""


def convolve(
    t: Tosa,
    input: Value,
    weight: Value,
    bias: Value | None,
    axes: Sequence[Window],
    groups: int,
) -> Value:
    """input [N,C,*S], weight [O,C/groups,*K], bias [O] -> [N,O,*S'], two or three axes.

    TOSA's convolutions have no groups. If each channel of a 2-D convolution is a group,
    it is DEPTHWISE_CONV2D; any other grouped convolution is one operator for each
    group.
    """
    t.expect_one_type("a convolution", input, weight, bias)
    if bias is None:
        bias = t.no_bias(input)
    image = t.transpose(input, channels_last(input.rank))
    x, pad = exact(t, image, axes, fill=0)
    stride = tuple([window.stride for window in axes])
    dilation = tuple([window.dilation for window in axes])
    has_group_for_each_channel = groups > 1 and groups == input.shape[1]
    if has_group_for_each_channel and len(axes) == 2:
        kernel = depthwise_weight(t, weight, groups)
        y = t.depthwise_conv2d(x, kernel, bias, pad, stride, dilation)
        return t.transpose(y, channels_first(y.rank))
    kernel = t.transpose(weight, channels_last(weight.rank))
    emit = t.conv2d if len(axes) == 2 else t.conv3d
    biases = group_biases(t, bias, groups)
    inputs = equal_parts(t, x, -1, groups)
    kernels = equal_parts(t, kernel, 0, groups)
    outputs = []
    for part, part_kernel, part_bias in zip(inputs, kernels, biases, strict=True):
        outputs.append(emit(part, part_kernel, part_bias, pad, stride, dilation))
    y = concatenated(t, outputs, x.rank - 1)
    return t.transpose(y, channels_first(y.rank))


def depthwise_weight(t: Tosa, weight: Value, channels: int) -> Value:
    """weight [C*M,1,KH,KW] -> [KH,KW,C,M].

    torch and TOSA both number the output channels c * M + m.
    """
    outputs, _, height, width = weight.shape
    flat = t.transpose(weight, HWOI)
    return t.reshape(flat, (height, width, channels, outputs // channels))


def group_biases(t: Tosa, bias: Value, groups: int) -> list[Value]:
    """Return the bias of each group; ``bias`` is [O], or [1] for all groups."""
    if bias.shape == (1,):
        return [bias] * groups
    return equal_parts(t, bias, 0, groups)


def equal_parts(t: Tosa, x: Value, axis: int, count: int) -> list[Value]:
    """Return ``count`` equal parts of x along ``axis``."""
    axis = axis_of(axis, x.rank)
    size = list(x.shape)
    size[axis] //= count
    parts = []
    for number in range(count):
        start = [0] * x.rank
        start[axis] = number * size[axis]
        parts.append(t.slice(x, start, size))
    return parts


def concatenated(t: Tosa, values: Sequence[Value], axis: int) -> Value:
    """Concatenate any number of values.

    CONCAT takes at most LONGEST_LIST tensors at once, so more are concatenated in
    several steps.
    """
    while len(values) > LONGEST_LIST:
        joined = []
        for start in range(0, len(values), LONGEST_LIST):
            chunk = values[start : start + LONGEST_LIST]
            joined.append(t.concat(chunk, axis))
        values = joined
    return t.concat(values, axis)


def _windows_with_padding(
    name: str, kernel: Numbers, stride: Numbers, dilation: Numbers
) -> list[Window]:
    """Return one window for each axis, with the padding that torch calls ``name``.

    "valid" is no padding. "same" gives as many outputs as inputs for a stride of 1. If
    that takes an odd number of elements, the end gets one more than the beginning.
    """
    windows = []
    for size, step, spacing in zip(kernel, stride, dilation, strict=True):
        padding = spacing * (size - 1) if name == "same" else 0
        before = padding // 2
        windows.append(Window(size, step, before, padding - before, spacing))
    return windows


@lowers(
    aten.conv1d.default,
    aten.conv2d.default,
    aten.conv3d.default,
    aten.conv1d.padding,
    aten.conv2d.padding,
    aten.conv3d.padding,
)
def conv(
    t: Tosa,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Numbers,
    padding: Numbers | str,
    dilation: Numbers,
    groups: int,
) -> Value:
    """input [N,C,*S], weight [O,C/groups,*K], bias [O] -> [N,O,*S']"""
    rank = weight.rank - 2
    kernel = weight.shape[2:]
    step = numbers(stride, rank)
    spacing = numbers(dilation, rank)
    if isinstance(padding, str):
        axes = _windows_with_padding(padding, kernel, step, spacing)
    else:
        axes = windows(kernel, step, numbers(padding, rank), spacing)
    x = batched(t, input, rank + 2)
    if rank > 1:
        y = convolve(t, x, weight, bias, axes, groups)
        return unbatched(t, y, input)
    image = with_height(t, x)
    kernel_image = with_height(t, weight)
    image_axes = [Window(kernel=1, stride=1, before=0, after=0), *axes]
    y = convolve(t, image, kernel_image, bias, image_axes, groups)
    return unbatched(t, without_height(t, y), input)


def with_height(t: Tosa, x: Value) -> Value:
    """Return x [A,B,L] as an image of height 1 [A,B,1,L]"""
    outer, channels, length = x.shape
    return t.reshape(x, (outer, channels, 1, length))


def without_height(t: Tosa, x: Value) -> Value:
    """Return an image of height 1 [A,B,1,L] as [A,B,L]: undoes ``with_height``."""
    outer, channels, _, length = x.shape
    return t.reshape(x, (outer, channels, length))
