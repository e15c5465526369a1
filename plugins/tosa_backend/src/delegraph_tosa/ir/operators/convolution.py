"""Convolutions (specification: Tensor Operators).

Layouts: input NHWC or NDHWC, weight OHWI, ODHWI or, depthwise, HWCM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..dynamic_sizes import differ, exceeds
from ..graph import Illegal, Ints, Operator, Value, check, note, note_broken
from ..types import DType, Type
from .rules import Shape, expect_length, expect_rank, expect_zero_point, idiv

AXES = {2: ("height", "width"), 3: ("depth", "height", "width")}


class Convolution(Operator):
    """Operands and rules that all convolutions share.

    The bias has one element, or one for each output channel; its element type is that
    of the result.
    """

    input: Value
    weight: Value
    bias: Value
    input_zp: Value
    weight_zp: Value

    def expect_channels(self, weight: int, input: int) -> None:
        """Check that the weight has as many channels as the input."""
        if differ(weight, input):
            note_broken(
                f"weight {self.weight.type} does not have the {input} channels of input"
                f" {self.input.type}",
                "channels",
            )

    def result(
        self, batch: int, spatial: Sequence[int], channels: int
    ) -> tuple[Type, ...]:
        """Return the result type [batch, *spatial, channels].

        Checks bias and zero points.
        """
        bias = expect_rank(self.bias, 1, "bias")
        if bias[0] != 1 and differ(bias[0], channels):
            note_broken(
                f"bias must have 1 or {channels} elements, is {self.bias.type}", "bias"
            )
        dtype = self.input.type.dtype
        expect_zero_point(self.input_zp, dtype, "input_zp")
        expect_zero_point(self.weight_zp, self.weight.type.dtype, "weight_zp")
        return (Type((batch, *spatial, channels), self.bias.type.dtype),)


class Windowed(Convolution):
    """A convolution with ``pad``, ``stride`` and ``dilation`` per spatial axis.

    ``pad`` is a flat list of (before, after): (top, bottom, left, right) in two
    dimensions.
    """

    pad: Ints
    stride: Ints
    dilation: Ints
    local_bound: bool = False
    acc_type: DType

    def spatial(self, sizes: Shape, kernel: Shape) -> list[int]:
        """Return the output size of each spatial axis.

        ``OH = (IH - 1 + pads - (KH - 1) * dilation) / stride + 1``. The division must
        be exact.
        """
        return spatial_sizes(sizes, kernel, self.pad, self.stride, self.dilation)


def spatial_sizes(
    sizes: Shape, kernel: Shape, pad: Ints, stride: Ints, dilation: Ints
) -> list[int]:
    """Return the output sizes of a convolution, as ``Windowed.spatial``."""
    axes = len(sizes)
    expect_length(pad, 2 * axes, "pad")
    expect_length(dilation, axes, "dilation")
    check(
        min(dilation) >= 1,
        f"dilation {list(dilation)} has an entry below 1",
        "dilation",
    )
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    return windows(sizes, pad, reach, stride)


def windows(sizes: Shape, pad: Ints, reach: Sequence[int], stride: Ints) -> list[int]:
    """Return the number of windows of size ``reach`` along each axis, ``stride`` apart.

    The last one must end at the edge.
    """
    expect_length(stride, len(sizes), "stride")
    if min(pad) < 0:
        note_broken(f"pad {list(pad)} must not be negative", "pad")
    if min(stride) < 1:
        raise Illegal(f"stride {list(stride)} must be positive", "stride")
    return [
        _window(len(sizes), axis, sizes[axis], pad, reach[axis], stride[axis])
        for axis in range(len(sizes))
    ]


def _window(axes: int, axis: int, size: int, pad: Ints, reach: int, stride: int) -> int:
    """Return the number of windows along ``axis``, one of ``axes`` spatial axes."""
    before = pad[2 * axis]
    after = pad[2 * axis + 1]
    span = size + before + after - reach
    if exceeds(0, span) or differ(span % stride, 0):
        # reports the broken rule; the text is made only here, because it is slow
        idiv(
            span,
            stride,
            f"{AXES[axes][axis]} {size} + padding {before} + {after} - kernel reach"
            f" {reach}",
        )
    return span // stride + 1


class _Dense(Windowed):
    """A convolution of every input channel with every output channel."""

    axes: ClassVar[int]

    def infer(self) -> tuple[Type, ...]:
        n, *size, ic = expect_rank(self.input, self.axes + 2, "input")
        oc, *kernel, wic = expect_rank(self.weight, self.axes + 2, "weight")
        self.expect_channels(wic, ic)
        return self.result(n, self.spatial(tuple(size), tuple(kernel)), oc)


class CONV2D(_Dense):
    """input [N,IH,IW,IC], weight [OC,KH,KW,IC], bias [OC or 1] -> [N,OH,OW,OC]."""

    axes = 2


class CONV3D(_Dense):
    """input [N,ID,IH,IW,IC], weight [OC,KD,KH,KW,IC], bias -> [N,OD,OH,OW,OC]."""

    axes = 3


class DEPTHWISE_CONV2D(Windowed):
    """input [N,IH,IW,C], weight [KH,KW,C,M], bias [C*M or 1] -> [N,OH,OW,C*M].

    Output channel ``c*M + m`` is the input channel c by the weight [:,:,c,m].
    """

    def infer(self) -> tuple[Type, ...]:
        n, *size, c = expect_rank(self.input, 4, "input")
        *kernel, wc, m = expect_rank(self.weight, 4, "weight")
        self.expect_channels(wc, c)
        return self.result(n, self.spatial(tuple(size), tuple(kernel)), c * m)


class TRANSPOSE_CONV2D(Convolution):
    """input [N,IH,IW,IC], weight [OC,KH,KW,IC], bias [OC or 1] -> [N,OH,OW,OC].

    ``out_pad`` is (top, bottom, left, right): rows and columns added to the output;
    negative numbers cut them off.
    """

    out_pad: Ints
    stride: Ints
    local_bound: bool = False
    acc_type: DType

    def infer(self) -> tuple[Type, ...]:
        n, *size, ic = expect_rank(self.input, 4, "input")
        oc, *kernel, wic = expect_rank(self.weight, 4, "weight")
        self.expect_channels(wic, ic)
        expect_length(self.out_pad, 4, "out_pad")
        expect_length(self.stride, 2, "stride")
        check(
            min(self.stride) >= 1,
            f"stride {list(self.stride)} must be positive",
            "stride",
        )
        spatial = [self._spatial(axis, size[axis], kernel[axis]) for axis in (0, 1)]
        return self.result(n, spatial, oc)

    def _spatial(self, axis: int, size: int, kernel: int) -> int:
        """Return ``(size - 1) * stride + before + after + kernel``, an output size."""
        before, after = self.out_pad[2 * axis : 2 * axis + 2]
        out_pad = list(self.out_pad)
        note(
            min(before, after) > -kernel,
            f"out_pad {out_pad} takes away a whole kernel of {kernel}",
            "out-pad",
        )
        out = (size - 1) * self.stride[axis] + before + after + kernel
        note(
            not exceeds(1, out),
            f"out_pad {out_pad} leaves no output {AXES[2][axis]}",
            "size-positive",
        )
        return out
