"""Type conversion and IDENTITY (specification: Type Conversion, Data Nodes)."""

from __future__ import annotations

from ..graph import Operator, ResultDType, Value, check, note, note_broken
from ..types import DType, RoundingMode, Type
from .rules import element, expect_single, same_type, whole_blocks


class CAST(Operator):
    """input [*S] -> [*S] of ``dtype``."""

    input: Value
    dtype: ResultDType

    def infer(self) -> tuple[Type, ...]:
        return (whole_blocks(Type(self.input.shape, self.dtype)),)


class RESCALE(Operator):
    """input [*S], multiplier and shift [C or 1], zero points -> [*S] of ``dtype``.

    The result is ``(input - input_zp) * multiplier / 2**shift + output_zp``. With
    ``per_channel``, multiplier and shift have one number for each index of the last
    axis. With ``scale32``, multipliers are int32 instead of int16.
    """

    input: Value
    multiplier: Value
    shift: Value
    input_zp: Value
    output_zp: Value
    scale32: bool
    rounding_mode: RoundingMode
    per_channel: bool
    input_unsigned: bool
    output_unsigned: bool
    dtype: ResultDType

    def infer(self) -> tuple[Type, ...]:
        self._check_scales()
        self._check_signs()
        _check_zero_point(
            self.input_zp, self.input.dtype, self.input_unsigned, "input_zp"
        )
        _check_zero_point(self.output_zp, self.dtype, self.output_unsigned, "output_zp")
        return (Type(self.input.shape, self.dtype),)

    def _check_scales(self) -> None:
        """Check shapes and types of multiplier and shift."""
        has_axis = self.input.rank > 0 or not self.per_channel
        check(
            has_axis, "per_channel needs an axis, the input has rank 0", "per-channel"
        )
        count = self.input.shape[-1] if self.per_channel else 1
        for operand, name in ((self.multiplier, "multiplier"), (self.shift, "shift")):
            if operand.shape != (count,):
                note_broken(
                    f"{name} must have shape [{count}], is {operand.type}",
                    "channel-count",
                )
        expected = DType.INT32 if self.scale32 else DType.INT16
        if self.multiplier.dtype is not expected:
            note_broken(
                f"multiplier must be {expected}, is {self.multiplier.type}",
                "scale-type",
            )
        wide = self.scale32 and self.input.dtype is DType.INT48
        note(not wide, "scale32 does not take int48", "scale32")
        double = self.rounding_mode is RoundingMode.DOUBLE_ROUND
        note(self.scale32 or not double, "DOUBLE_ROUND needs scale32", "double-round")

    def _check_signs(self) -> None:
        """Check that the element types allow an unsigned input or output."""
        before = self.input.dtype
        after = self.dtype
        both = self.input_unsigned and self.output_unsigned
        note(not both, "input and output cannot both be unsigned", "unsigned-once")
        if before not in (DType.INT32, DType.INT48) and after is not DType.INT32:
            return
        if self.input_unsigned:
            note_broken(
                f"an unsigned input cannot be rescaled from {before} to {after}",
                "unsigned-input",
            )
        if self.output_unsigned:
            note_broken(
                f"an unsigned output cannot be rescaled from {before} to {after}",
                "unsigned-output",
            )


def _check_zero_point(
    zero_point: Value, dtype: DType, unsigned: bool, name: str
) -> None:
    """Check that a known zero point is 0, unless ``dtype`` is int8.

    For unsigned int16 it may be 32768, which an int16 constant stores as -32768.
    """
    expect_single(zero_point, name)
    value = element(zero_point)
    if not value or dtype is DType.INT8:
        return
    allowed = dtype is DType.INT16 and unsigned and int(value) % 65536 == 32768
    or_else = " (or 32768, as it is unsigned)" if unsigned else ""
    note(allowed, f"{name} must be 0 for {dtype}{or_else}, is {value}", "zero-point")


class IDENTITY(Operator):
    """input1 [*S] -> [*S], unchanged."""

    input1: Value
    infer = same_type
