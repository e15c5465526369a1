"""Pooling and resizing of images in NHWC (specification: Image Operators)."""

from __future__ import annotations

from ..dynamic_sizes import exceeds
from ..graph import Ints, Operator, Value, check, note, note_broken
from ..types import BLOCK_SCALED, DType, NanMode, ResizeMode, Type
from .convolution import AXES, windows
from .rules import (
    Shape,
    expect_length,
    expect_rank,
    expect_zero_point,
    idiv,
    shape_operand,
)


def _pooled(input: Value, kernel: Ints, stride: Ints, pad: Ints) -> tuple[Type, ...]:
    """Return the result type of a pool over ``input`` [N,IH,IW,C]."""
    n, height, width, c = expect_rank(input, 4, "input")
    expect_length(kernel, 2, "kernel")
    expect_length(pad, 4, "pad")
    check(min(kernel) >= 1, f"kernel {list(kernel)} has an entry below 1", "kernel")
    if max(pad[:2]) >= kernel[0] or max(pad[2:]) >= kernel[1]:
        note_broken(
            f"pad {list(pad)} must be smaller than the kernel {list(kernel)}",
            "pad-below-kernel",
        )
    return (Type((n, *windows((height, width), pad, kernel, stride), c), input.dtype),)


class AVG_POOL2D(Operator):
    """input [N,IH,IW,C] -> [N,OH,OW,C]: mean of each window.

    ``pad`` is (top, bottom, left, right). Padding does not count in the mean.
    """

    input: Value
    input_zp: Value
    output_zp: Value
    kernel: Ints
    stride: Ints
    pad: Ints
    acc_type: DType

    def infer(self) -> tuple[Type, ...]:
        expect_zero_point(self.input_zp, self.input.dtype, "input_zp")
        expect_zero_point(self.output_zp, self.input.dtype, "output_zp")
        return _pooled(self.input, self.kernel, self.stride, self.pad)


class MAX_POOL2D(Operator):
    """input [N,IH,IW,C] -> [N,OH,OW,C]: maximum of each window.

    ``pad`` is (top, bottom, left, right).
    """

    input: Value
    kernel: Ints
    stride: Ints
    pad: Ints
    nan_mode: NanMode = NanMode.PROPAGATE

    def infer(self) -> tuple[Type, ...]:
        return _pooled(self.input, self.kernel, self.stride, self.pad)


class AVG_POOL2D_ADAPTIVE(Operator):
    """AVG_POOL2D with SHAPE operands kernel [2], stride [2], pad [4] (1.1)."""

    input: Value
    input_zp: Value
    output_zp: Value
    kernel: Value
    stride: Value
    pad: Value
    acc_type: DType

    def infer(self) -> tuple[Type, ...]:
        expect_zero_point(self.input_zp, self.input.dtype, "input_zp")
        expect_zero_point(self.output_zp, self.input.dtype, "output_zp")
        return _pooled(self.input, *window_operands(self))


class MAX_POOL2D_ADAPTIVE(Operator):
    """MAX_POOL2D with SHAPE operands kernel [2], stride [2], pad [4] (1.1)."""

    input: Value
    kernel: Value
    stride: Value
    pad: Value
    nan_mode: NanMode = NanMode.PROPAGATE

    def infer(self) -> tuple[Type, ...]:
        return _pooled(self.input, *window_operands(self))


def window_operands(
    pool: AVG_POOL2D_ADAPTIVE | MAX_POOL2D_ADAPTIVE,
) -> tuple[Shape, Shape, Shape]:
    """Return the entries of the operands kernel, stride and pad."""
    kernel = shape_operand(pool.kernel, 2, "kernel")
    stride = shape_operand(pool.stride, 2, "stride")
    return kernel, stride, shape_operand(pool.pad, 4, "pad")


_WIDENED = {DType.INT8: DType.INT32, DType.INT16: DType.INT48}
"""Element type of an input -> that of the result of bilinear RESIZE, if they differ."""


class RESIZE(Operator):
    """input [N,IH,IW,C] -> [N,OH,OW,C].

    ``scale`` is (y_n, y_d, x_n, x_d): the image is scaled by y_n / y_d and x_n / x_d.
    ``offset`` and ``border`` are (y, x) in units of 1/n input pixels. ``OH = ((IH - 1)
    * y_n - offset_y + border_y) / y_d + 1``, and the division must be exact.
    """

    input: Value
    scale: Value
    offset: Value
    border: Value
    mode: ResizeMode

    def infer(self) -> tuple[Type, ...]:
        n, *size, c = expect_rank(self.input, 4, "input")
        scale = shape_operand(self.scale, 4, "scale")
        offset = shape_operand(self.offset, 2, "offset")
        border = shape_operand(self.border, 2, "border")
        check(min(scale) > 0, f"scale {list(scale)} has an entry below 1", "scale")
        out = [
            _resized(i, size[i], scale[2 * i : 2 * i + 2], offset[i], border[i])
            for i in (0, 1)
        ]
        note(
            not any(exceeds(n, 16383) for n in (*size, *out)),
            f"image sizes must be below 16384: {size} -> {out}",
            "image-size",
        )
        dtype = self.input.dtype
        nearest = self.mode is ResizeMode.NEAREST
        note(
            nearest or dtype not in BLOCK_SCALED,
            f"{dtype} is resized to the NEAREST element only",
            "block-mode",
        )
        result_dtype = dtype if nearest else _WIDENED.get(dtype, dtype)
        return (Type((n, *out, c), result_dtype),)


def _resized(axis: int, size: int, scale: Shape, offset: int, border: int) -> int:
    """Return the output size along height (``axis`` 0) or width (1).

    ``scale`` is (n, d).
    """
    n, d = scale
    note(n <= 2048, f"scale numerator {n} is above 2048", "scale-numerator")
    note(d < 16 * n, f"scale {n}/{d} is not above 1/16", "downscale")
    note(
        -n <= offset < 16 * n, f"offset {offset} is outside [-{n}, {16 * n})", "offset"
    )
    note(
        -16 * n <= border < n, f"border {border} is outside [-{16 * n}, {n})", "border"
    )
    what = f"({AXES[2][axis]} {size} - 1) * {n} - offset {offset} + border {border}"
    return idiv((size - 1) * n - offset + border, d, what) + 1
