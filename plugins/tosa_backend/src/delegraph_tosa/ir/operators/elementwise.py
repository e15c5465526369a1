"""Elementwise operators of one, two and three operands, which broadcast at equal rank.

Specification: Elementwise Unary Operators, Elementwise Binary Operators, Elementwise
Ternary Operators.
"""

from __future__ import annotations

from ..graph import Operator, Value, note
from ..types import DType, NanMode, Type
from .rules import broadcast, element, expect_single, expect_zero_point, same_type


class Unary(Operator):
    """input1 [*S] -> [*S]."""

    input1: Value
    infer = same_type


class Binary(Operator):
    """input1 [*S], input2 [*S] -> [*S]."""

    input1: Value
    input2: Value

    def infer(self) -> tuple[Type, ...]:
        return (Type(broadcast(*self.inputs), self.inputs[0].type.dtype),)


class ABS(Unary):
    """Absolute value."""


class BITWISE_NOT(Unary):
    """All bits inverted."""


class CEIL(Unary):
    """Rounded up."""


class CLZ(Unary):
    """Number of leading zero bits."""


class COS(Unary):
    """Cosine of radians."""


class EXP(Unary):
    """Exponential, base e."""


class FLOOR(Unary):
    """Rounded down."""


class LOG(Unary):
    """Natural logarithm."""


class LOGICAL_NOT(Unary):
    """Logical not."""


class RECIPROCAL(Unary):
    """1 / x."""


class RSQRT(Unary):
    """1 / square root of x."""


class SIN(Unary):
    """Sine of radians."""


class NEGATE(Operator):
    """input1 [*S], zero points [1] -> [*S]: -(x - input1_zp) + output_zp."""

    input1: Value
    input1_zp: Value
    output_zp: Value

    def infer(self) -> tuple[Type, ...]:
        expect_zero_point(self.input1_zp, self.input1.dtype, "input1_zp")
        expect_zero_point(self.output_zp, self.input1.dtype, "output_zp")
        return (self.input1.type,)


class ADD(Binary):
    """Sum."""


class ARITHMETIC_RIGHT_SHIFT(Binary):
    """input1 shifted right by input2, sign kept, rounded to nearest with ``round``."""

    round: bool


class BITWISE_AND(Binary):
    """Bitwise and."""


class BITWISE_OR(Binary):
    """Bitwise or."""


class BITWISE_XOR(Binary):
    """Bitwise exclusive or."""


class INTDIV(Binary):
    """Integer quotient, truncated towards zero."""


class LOGICAL_AND(Binary):
    """Logical and."""


class LOGICAL_LEFT_SHIFT(Binary):
    """input1 shifted left by input2."""


class LOGICAL_RIGHT_SHIFT(Binary):
    """input1 shifted right by input2, zeros shifted in."""


class LOGICAL_OR(Binary):
    """Logical or."""


class LOGICAL_XOR(Binary):
    """Logical exclusive or."""


class MAXIMUM(Binary):
    """The larger element."""

    nan_mode: NanMode = NanMode.PROPAGATE


class MINIMUM(Binary):
    """The smaller element."""

    nan_mode: NanMode = NanMode.PROPAGATE


class POW(Binary):
    """input1 to the power of input2."""


class SUB(Binary):
    """Difference."""


class MUL(Operator):
    """input1 [*S], input2 [*S], shift INT8 [1] -> [*S], the product.

    The product of int8 or int16 is int32. The product of int32 is shifted right.
    """

    input1: Value
    input2: Value
    shift: Value

    def infer(self) -> tuple[Type, ...]:
        dtype = self.inputs[0].type.dtype
        self._check_shift(dtype)
        widened = DType.INT32 if dtype in (DType.INT8, DType.INT16) else dtype
        return (Type(broadcast(*self.inputs[:2]), widened),)

    def _check_shift(self, dtype: DType) -> None:
        """Check that a known shift is 0 to 63 for int32, and 0 for any other type."""
        expect_single(self.shift, "shift")
        shift = element(self.shift)
        if shift:
            note(
                dtype is DType.INT32,
                f"shift must be 0 for {dtype}, is {shift}",
                "shift-type",
            )
            note(0 <= shift <= 63, f"shift must be 0 to 63, is {shift}", "shift-range")


class TABLE(Operator):
    """input1 [*S], table int8 [256] or int16 [513] -> [*S].

    An int8 element is looked up. For int16, the table is interpolated to int32.
    """

    input1: Value
    table: Value

    def infer(self) -> tuple[Type, ...]:
        wide = self.input1.dtype is DType.INT16
        length = 513 if wide else 256
        note(
            self.table.shape == (length,),
            f"table for {self.input1.dtype} must be [{length}], is {self.table.type}",
            "table-size",
        )
        return (Type(self.input1.shape, DType.INT32 if wide else self.input1.dtype),)


class SELECT(Operator):
    """input1 BOOL [*S], input2, input3 [*S] -> [*S]: input2 where input1 is true."""

    input1: Value
    input2: Value
    input3: Value

    def infer(self) -> tuple[Type, ...]:
        return (Type(broadcast(*self.inputs), self.input2.dtype),)
