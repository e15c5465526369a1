"""Reductions, matrix products and Fourier transforms."""

from __future__ import annotations

from ..dynamic_sizes import agree, differ, is_dynamic
from ..graph import Operator, ResultDType, Value, note
from ..types import DType, NanMode, Type
from .rules import expect_axis, expect_rank, expect_zero_point


class Reduction(Operator):
    """input [*S] -> [*S] with size 1 at ``axis``."""

    input: Value
    axis: int

    def infer(self) -> tuple[Type, ...]:
        shape, dtype = self.inputs[0].type
        expect_axis(self.axis, len(shape))
        return (Type((*shape[: self.axis], 1, *shape[self.axis + 1 :]), dtype),)


class REDUCE_ALL(Reduction):
    """Logical and along the axis."""


class REDUCE_ANY(Reduction):
    """Logical or along the axis."""


class REDUCE_MAX(Reduction):
    """Maximum along the axis."""

    nan_mode: NanMode = NanMode.PROPAGATE


class REDUCE_MIN(Reduction):
    """Minimum along the axis."""

    nan_mode: NanMode = NanMode.PROPAGATE


class REDUCE_PRODUCT(Reduction):
    """Product along the axis."""


class REDUCE_SUM(Reduction):
    """Sum along the axis."""


class ARGMAX(Operator):
    """input [*S] -> [*S'] without ``axis``: the index of the first maximum.

    It is INT32 or (1.1 draft) INT64.
    """

    input: Value
    axis: int
    nan_mode: NanMode = NanMode.PROPAGATE
    dtype: ResultDType = DType.INT32

    def infer(self) -> tuple[Type, ...]:
        shape = self.input.shape
        expect_axis(self.axis, len(shape))
        return (Type(shape[: self.axis] + shape[self.axis + 1 :], self.dtype),)


class _Product(Operator):
    """A product of matrices. Its element type ``dtype`` is that of the accumulator.

    ``dtype`` is int32 for operands of int8, int48 for int16, fp16 or fp32 for fp16, and
    fp32 for bf16.
    """

    A: Value
    B: Value
    A_zp: Value
    B_zp: Value
    dtype: ResultDType

    def infer(self) -> tuple[Type, ...]:
        shape = self.shape()
        expect_zero_point(self.A_zp, self.A.dtype, "A_zp")
        expect_zero_point(self.B_zp, self.B.dtype, "B_zp")
        return (Type(shape, self.dtype),)

    def shape(self) -> tuple[int, ...]:
        """Return the shape [N,H,W] of the product."""
        raise NotImplementedError


class MATMUL(_Product):
    """A [N,H,C], B [N,C,W], zero points [1] -> [N,H,W]."""

    def shape(self) -> tuple[int, ...]:
        n, h, c = expect_rank(self.A, 3, "A")
        batch, depth, w = expect_rank(self.B, 3, "B")
        note(
            agree((batch, depth), (n, c)),
            f"{self.A.type} and {self.B.type} do not multiply",
            "matmul-shapes",
        )
        return n, h, w


class MATMUL_T(_Product):
    """A [N,H,C], B [N or 1,W,C], zero points -> [N,H,W] (1.1), B transposed."""

    def shape(self) -> tuple[int, ...]:
        n, h, c = expect_rank(self.A, 3, "A")
        batch, w, depth = expect_rank(self.B, 3, "B")
        fits = not differ(depth, c) and (batch == 1 or not differ(batch, n))
        note(
            fits,
            f"{self.A.type} and {self.B.type} (transposed) do not multiply",
            "matmul-shapes",
        )
        return n, h, w


def _expect_power_of_two(*sizes: int) -> None:
    """Check that each known size is a power of two."""
    powers = all(is_dynamic(n) or (n > 0 and n & (n - 1) == 0) for n in sizes)
    note(powers, f"sizes {list(sizes)} must be powers of two", "power-of-two")


class FFT2D(Operator):
    """input_real, input_imag [N,H,W] -> output_real, output_imag [N,H,W].

    H and W are powers of two.
    """

    input_real: Value
    input_imag: Value
    inverse: bool
    local_bound: bool = False

    def infer(self) -> tuple[Type, ...]:
        _, h, w = expect_rank(self.input_real, 3, "input_real")
        note(
            agree(self.input_imag.shape, self.input_real.shape),
            f"{self.input_real.type} and {self.input_imag.type} differ",
            "same-shape",
        )
        _expect_power_of_two(h, w)
        return (self.input_real.type, self.input_real.type)


class RFFT2D(Operator):
    """input_real [N,H,W] -> output_real, output_imag [N,H,W/2+1].

    H and W are powers of two.
    """

    input_real: Value
    local_bound: bool = False

    def infer(self) -> tuple[Type, ...]:
        n, h, w = expect_rank(self.input_real, 3, "input_real")
        _expect_power_of_two(h, w)
        half = Type((n, h, w // 2 + 1), self.input_real.dtype)
        return (half, half)
