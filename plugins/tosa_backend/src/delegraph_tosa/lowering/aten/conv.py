"""Convolutions. TOSA's images are NHWC and its weights OHWI; depthwise ones are HWCM."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...ir.graph import Value
from ..builder import Shape, Tosa
from ..layout import HWOI, NCHW, NHWC, OHWI, Pair, batched, pair, unbatched
from ..registry import lowers
from ..window import Window, exact, windows

aten = torch.ops.aten


def convolve(t: Tosa, input: Value, weight: Value, bias: Value | None, axes: Sequence[Window], groups: int) -> Value:
    """input [N,C,H,W], weight [O,C/groups,KH,KW], bias [O] -> [N,O,H',W']"""
    types = {v.dtype for v in (input, weight, bias) if v is not None}
    t.require(len(types) == 1, f"a convolution of mixed types ({', '.join(map(str, sorted(types)))}) is not lowered")
    if bias is None:
        bias = t.constant(0, input.dtype)
    x, pad = exact(t, t.transpose(input, NHWC), axes)
    stride, dilation = pair([a.stride for a in axes]), pair([a.dilation for a in axes])
    if groups == 1:
        y = t.conv2d(x, t.transpose(weight, OHWI), bias, pad, stride, dilation)
    elif groups == input.shape[1]:
        y = t.depthwise_conv2d(x, depthwise_weight(t, weight, groups), bias, pad, stride, dilation)
    else:
        y = _grouped(t, x, t.transpose(weight, OHWI), bias, pad, stride, dilation, groups)
    return t.transpose(y, NCHW)


def depthwise_weight(t: Tosa, weight: Value, channels: int) -> Value:
    """weight [C*M,1,KH,KW] -> [KH,KW,C,M]; output channel c*M + m, in torch and in TOSA"""
    outputs, _, height, width = weight.shape
    return t.reshape(t.transpose(weight, HWOI), (height, width, channels, outputs // channels))


def _grouped(
    t: Tosa, x: Value, weight: Value, bias: Value, pad: Shape, stride: Pair, dilation: Pair, groups: int
) -> Value:
    """x [N,H,W,C], weight [O,KH,KW,C/groups], bias [O or 1] -> [N,H',W',O], one convolution a group."""
    parts = zip(
        _split(t, x, 3, groups),
        _split(t, weight, 0, groups),
        _split(t, bias, 0, groups) if bias.shape != (1,) else [bias] * groups,
        strict=True,
    )
    return joined(t, [t.conv2d(part, w, b, pad, stride, dilation) for part, w, b in parts], 3)


def _split(t: Tosa, x: Value, axis: int, count: int) -> list[Value]:
    """``count`` equal pieces along ``axis``."""
    size = list(x.shape)
    size[axis] //= count
    starts = [[0] * axis + [k * size[axis]] + [0] * (x.rank - axis - 1) for k in range(count)]
    return [t.slice(x, start, size) for start in starts]


def joined(t: Tosa, values: Sequence[Value], axis: int) -> Value:
    """CONCAT of any number of values: at level 8K one takes 64 (MAX_TENSOR_LIST_SIZE)."""
    while len(values) > 64:
        values = [t.concat(values[k : k + 64], axis) for k in range(0, len(values), 64)]
    return t.concat(values, axis)


def named_padding(name: str, kernel: Pair, stride: Pair, dilation: Pair) -> list[Window]:
    """Windows for padding "valid" (none) or "same" (as many outputs as inputs; the odd element behind)."""
    total = [d * (k - 1) if name == "same" else 0 for k, d in zip(kernel, dilation, strict=True)]
    rows = zip(kernel, stride, total, dilation, strict=True)
    return [Window(k, s, p // 2, p - p // 2, d) for k, s, p, d in rows]


Numbers = Sequence[int]


@lowers(aten.conv2d.default)
def conv2d(
    t: Tosa,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    groups: int,
) -> Value:
    """input [N,C,H,W], weight [O,C/groups,KH,KW], bias [O] -> [N,O,H',W']"""
    axes = windows(pair(weight.shape[2:]), pair(stride), pair(padding), pair(dilation))
    return unbatched(t, convolve(t, batched(t, input, 4), weight, bias, axes, groups), input)


@lowers(aten.conv2d.padding)
def conv2d_padding(
    t: Tosa,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Numbers,
    padding: str,
    dilation: Numbers,
    groups: int,
) -> Value:
    """input [N,C,H,W], weight [O,C/groups,KH,KW], bias [O] -> [N,O,H',W']"""
    axes = named_padding(padding, pair(weight.shape[2:]), pair(stride), pair(dilation))
    return unbatched(t, convolve(t, batched(t, input, 4), weight, bias, axes, groups), input)


@lowers(aten.conv1d.default)
def conv1d(
    t: Tosa,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    groups: int,
) -> Value:
    """input [N,C,L], weight [O,C/groups,K], bias [O] -> [N,O,L']; a 2-D convolution of height 1"""
    axes = windows((1, weight.shape[2]), (1, stride[0]), (0, padding[0]), (1, dilation[0]))
    return _flat(t, input, weight, bias, axes, groups)


@lowers(aten.conv1d.padding)
def conv1d_padding(
    t: Tosa,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Numbers,
    padding: str,
    dilation: Numbers,
    groups: int,
) -> Value:
    """input [N,C,L], weight [O,C/groups,K], bias [O] -> [N,O,L']"""
    axes = named_padding(padding, (1, weight.shape[2]), (1, stride[0]), (1, dilation[0]))
    return _flat(t, input, weight, bias, axes, groups)


def _flat(t: Tosa, input: Value, weight: Value, bias: Value | None, axes: list[Window], groups: int) -> Value:
    x, w = batched(t, input, 3), weight.shape
    image = t.reshape(x, (x.shape[0], x.shape[1], 1, x.shape[2]))
    y = convolve(t, image, t.reshape(weight, (w[0], w[1], 1, w[2])), bias, axes, groups)
    return unbatched(t, t.reshape(y, (y.shape[0], y.shape[1], y.shape[3])), input)


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
    """input [N,C,H,W] or [N,C,L], weight [O,C/groups,KH,KW] or [O,C/groups,K], bias [O] -> [N,O,H',W'] or [N,O,L']"""
    t.require(not transposed, "a transposed convolution is not lowered")
    if weight.rank == 3:
        return conv1d(t, input, weight, bias, stride, padding, dilation, groups)
    t.require(weight.rank == 4, f"a convolution over {weight.rank - 2} axes is not lowered, only over 1 or 2")
    return conv2d(t, input, weight, bias, stride, padding, dilation, groups)
