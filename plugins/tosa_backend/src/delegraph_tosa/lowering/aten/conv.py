"""Convolutions.

TOSA's images are NHWC and its weights OHWI; depthwise ones are HWCM.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...ir.graph import Value
from ..builder import Tosa
from ..geometry.layout import (
    HWOI,
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
    bias = t.no_bias(input) if bias is None else bias
    x, pad = exact(t, t.transpose(input, channels_last(input.rank)), axes, fill=0)
    settings = pad, tuple([a.stride for a in axes]), tuple([a.dilation for a in axes])
    emit = t.conv2d if len(axes) == 2 else t.conv3d
    kernel = channels_last(weight.rank)
    if groups == 1:
        y = emit(x, t.transpose(weight, kernel), bias, *settings)
    elif groups == input.shape[1] and len(axes) == 2:
        y = t.depthwise_conv2d(x, depthwise_weight(t, weight, groups), bias, *settings)
    else:
        parts = in_groups(t, (x, -1), (t.transpose(weight, kernel), 0), bias, groups)
        y = concatenated(
            t, [emit(part, w, b, *settings) for part, w, b in parts], x.rank - 1
        )
    return t.transpose(y, channels_first(y.rank))


def depthwise_weight(t: Tosa, weight: Value, channels: int) -> Value:
    """weight [C*M,1,KH,KW] -> [KH,KW,C,M].

    torch and TOSA both number the output channels c * M + m.
    """
    outputs, _, height, width = weight.shape
    return t.reshape(
        t.transpose(weight, HWOI), (height, width, channels, outputs // channels)
    )


def in_groups(
    t: Tosa,
    input: tuple[Value, int],
    weight: tuple[Value, int],
    bias: Value,
    groups: int,
) -> list[tuple[Value, Value, Value]]:
    """Return (input, weight, bias) for each group of a grouped convolution.

    ``input`` and ``weight`` are pairs: a value, and the axis along which it is split
    into groups. ``bias`` is [O], or [1] for one bias of all groups.
    """
    biases = _split(t, bias, 0, groups) if bias.shape != (1,) else [bias] * groups
    return list(
        zip(_split(t, *input, groups), _split(t, *weight, groups), biases, strict=True)
    )


def _split(t: Tosa, x: Value, axis: int, count: int) -> list[Value]:
    """Return ``count`` equal pieces along ``axis``."""
    axis %= x.rank
    # the size of a piece, and where each piece starts
    size = list(x.shape)
    size[axis] //= count
    starts = [
        [0] * axis + [k * size[axis]] + [0] * (x.rank - axis - 1) for k in range(count)
    ]
    return [t.slice(x, start, size) for start in starts]


def concatenated(t: Tosa, values: Sequence[Value], axis: int) -> Value:
    """CONCAT of any number of values.

    Level 8K takes 64 tensors at once (MAX_TENSOR_LIST_SIZE), so more than 64 are
    concatenated in several steps.
    """
    while len(values) > 64:
        values = [t.concat(values[k : k + 64], axis) for k in range(0, len(values), 64)]
    return t.concat(values, axis)


def named_padding(
    name: str, kernel: Numbers, stride: Numbers, dilation: Numbers
) -> list[Window]:
    """Return one window for each axis, with the padding that torch calls ``name``.

    "valid" is no padding. "same" is as much as gives as many outputs as inputs; if that
    is an odd number of elements, the end gets one more than the beginning.
    """
    total = [
        d * (k - 1) if name == "same" else 0
        for k, d in zip(kernel, dilation, strict=True)
    ]
    rows = zip(kernel, stride, total, dilation, strict=True)
    return [Window(k, s, p // 2, p - p // 2, d) for k, s, p, d in rows]


@lowers(
    *(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default),
    *(aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding),
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
    step = numbers(stride, rank)
    spacing = numbers(dilation, rank)
    if isinstance(padding, str):
        axes = named_padding(padding, weight.shape[2:], step, spacing)
    else:
        axes = windows(weight.shape[2:], step, numbers(padding, rank), spacing)
    x = batched(t, input, rank + 2)
    if rank == 1:
        # over one axis: an image of height 1
        y = low(
            t,
            convolve(
                t,
                high(t, x),
                high(t, weight),
                bias,
                [Window(1, 1, 0, 0), *axes],
                groups,
            ),
        )
    else:
        y = convolve(t, x, weight, bias, axes, groups)
    return unbatched(t, y, input)


def high(t: Tosa, x: Value) -> Value:
    """Return x [A,B,L] as an image of height 1 [A,B,1,L]"""
    return t.reshape(x, (x.shape[0], x.shape[1], 1, x.shape[2]))


def low(t: Tosa, x: Value) -> Value:
    """Return an image of height 1 [A,B,1,L] as [A,B,L]: undoes ``high``."""
    return t.reshape(x, (x.shape[0], x.shape[1], x.shape[3]))
