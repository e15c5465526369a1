"""Block-scaled operators of the 1.1 draft (EXT-MX-...).

Blocks of the last axis share scales, which are a separate tensor. A scale tensor has
the shape of its data, with the last size divided by ``block_size``.
"""

from __future__ import annotations

import math

from ..graph import Operator, ResultDType, Value, Values, check, note, shape_of
from ..types import BlockSize, DType, Type
from .convolution import spatial_sizes
from .layout import expect_gather_indices, expect_row_count
from .rules import Shape, expect_rank, positive_sizes, shape_operand


def scale_shape(shape: Shape, block_size: int, name: str) -> Shape:
    """Return the shape of the scales of data, which must be whole blocks."""
    whole = len(shape) > 0 and shape[-1] % block_size == 0
    check(
        whole,
        f"{name} {list(shape)} is not made of blocks of {int(block_size)}",
        "blocks",
    )
    return (*shape[:-1], shape[-1] // block_size)


def _expect_blocks(block_size: int) -> None:
    """Check that the block size is not 1."""
    note(block_size != 1, "a block has more than one element", "block-size")


def _expect_scale(scale: Value, data: Value, block_size: int, name: str) -> None:
    """Check that ``scale`` has the shape of the scales of ``data``."""
    shape = scale_shape(data.shape, block_size, name)
    note(
        scale.shape == shape,
        f"the scale of {name} must have shape {list(shape)}, is {scale.type}",
        "scale-shape",
    )


class MATMUL_T_BLOCK_SCALED(Operator):
    """A_data [N,H,C], B_data [N or 1,W,C], with scales [..,C/block] -> FP32 [N,H,W].

    B_data is transposed.
    """

    A_data: Value
    A_scale: Value
    B_data: Value
    B_scale: Value
    block_size: BlockSize

    def infer(self) -> tuple[Type, ...]:
        _expect_blocks(self.block_size)
        n, h, c = expect_rank(self.A_data, 3, "A_data")
        batch, w, depth = expect_rank(self.B_data, 3, "B_data")
        fits = depth == c and batch in (1, n)
        note(
            fits,
            f"{self.A_data.type} and {self.B_data.type} (transposed) do not multiply",
            "matmul-shapes",
        )
        _expect_scale(self.A_scale, self.A_data, self.block_size, "A_data")
        _expect_scale(self.B_scale, self.B_data, self.block_size, "B_data")
        return (Type((n, h, w), DType.FP32),)


class CONV2D_BLOCK_SCALED(Operator):
    """input [N,IH,IW,IC], weight [OC,KH,KW,IC], scales, bias -> FP32 [N,OH,OW,OC]."""

    input_data: Value
    input_scale: Value
    weight_data: Value
    weight_scale: Value
    bias: Value
    pad: Value
    stride: Value
    dilation: Value
    block_size: BlockSize

    def infer(self) -> tuple[Type, ...]:
        _expect_blocks(self.block_size)
        n, *size, ic = expect_rank(self.input_data, 4, "input_data")
        oc, *kernel, wic = expect_rank(self.weight_data, 4, "weight_data")
        note(
            wic == ic,
            f"weight {self.weight_data.type} does not have the {ic} channels of"
            f" {self.input_data.type}",
            "channels",
        )
        _expect_scale(self.input_scale, self.input_data, self.block_size, "input_data")
        _expect_scale(
            self.weight_scale, self.weight_data, self.block_size, "weight_data"
        )
        (bias,) = expect_rank(self.bias, 1, "bias")
        note(
            bias in (1, oc),
            f"bias must have 1 or {oc} elements, is {self.bias.type}",
            "bias",
        )
        pad = shape_operand(self.pad, 4, "pad")
        stride = shape_operand(self.stride, 2, "stride")
        dilation = shape_operand(self.dilation, 2, "dilation")
        spatial = spatial_sizes(tuple(size), tuple(kernel), pad, stride, dilation)
        return (Type((n, *spatial, oc), DType.FP32),)


class CAST_FROM_BLOCK_SCALED(Operator):
    """input_data [*S,C], input_scale [*S,C/block] -> [*S,C] of ``dtype``."""

    input_data: Value
    input_scale: Value
    block_size: BlockSize
    dtype: ResultDType

    def infer(self) -> tuple[Type, ...]:
        _expect_blocks(self.block_size)
        _expect_scale(self.input_scale, self.input_data, self.block_size, "input_data")
        return (Type(self.input_data.shape, self.dtype),)


class CAST_TO_BLOCK_SCALED(Operator):
    """input_data [*S,C] -> output_data [*S,C], output_scale [*S,C/block]."""

    input_data: Value
    block_size: BlockSize
    dtype: ResultDType

    def infer(self) -> tuple[Type, ...]:
        _expect_blocks(self.block_size)
        shape = self.input_data.shape
        scale = Type(scale_shape(shape, self.block_size, "input_data"), DType.FP8UE8M0)
        return (Type(shape, self.dtype), scale)


def _expect_list(values: Values, block_size: int) -> None:
    """Check that ``values`` are a tensor, and its scale if the block size is not 1."""
    check(
        0 < len(values) < 3,
        f"a tensor and perhaps its scale are wanted, not {len(values)} operands",
        "list-length",
    )
    scaled = len(values) == 2
    fits = scaled == (block_size != 1)
    check(
        fits,
        f"{len(values)} tensors do not go with a block size of {int(block_size)}",
        "list-length",
    )
    if scaled:
        _expect_scale(values[1], values[0], block_size, "the value")


class RESHAPE_BLOCK_SCALED(Operator):
    """input: [a tensor, its scale], new_value_shape SHAPE -> both reshaped.

    With a block size of 1, there is no scale.
    """

    input: Values
    new_value_shape: Value
    block_size: BlockSize

    def infer(self) -> tuple[Type, ...]:
        _expect_list(self.input, self.block_size)
        shape = positive_sizes(shape_of(self.new_value_shape), "new_value_shape")
        data = self.inputs[0]
        fits = math.prod(shape) == math.prod(data.shape) or min(shape, default=1) < 1
        note(
            fits,
            f"{data.type} does not have the elements of {list(shape)}",
            "element-count",
        )
        if len(self.input) == 1:
            return (Type(shape, data.dtype),)
        scale = Type(
            scale_shape(shape, self.block_size, "new_value_shape"), self.inputs[1].dtype
        )
        return (Type(shape, data.dtype), scale)


class ROW_GATHER_BLOCK_SCALED(Operator):
    """values [N,K,C], indices [N,W], row_count INT32 [1] -> [N,W*row_count,C].

    If ``values`` contains a scale, it is gathered, too.
    """

    values: Values
    indices: Value
    row_count: Value
    block_size: BlockSize

    def infer(self) -> tuple[Type, ...]:
        _expect_list(self.values, self.block_size)
        n, w = expect_gather_indices(self.indices, self.inputs[0])
        rows = w * expect_row_count(self.row_count)
        return tuple(Type((n, rows, *v.shape[2:]), v.dtype) for v in self.values)
