"""Quantize and dequantize operators of PT2E, per tensor and per channel.

Dequantizing emits no operators: it returns a lazy value, here ``Scaled``, which stands
for (integers - zero point) * scale. Rules on lazy values compute with its integers.
uint8 integers are ``Bytes``: int8 integers that are HALF = 128 less.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

# registers the operators; the exporting program has imported it, too
import torch.ao.quantization.fx._decomposed

from ...evaluate import materialize
from ...ir.graph import Value
from ...ir.types import DType
from ..builder import Operand, Tosa
from ..lazy.lazy_values import Lazy, Scaled, quantized
from ..lazy.quantization import Quantization, Scale, expect_scale
from ..lazy.unsigned import HALF, Bytes
from ..promotion import converted
from ..ranges.value_ranges import inside, meet, range_of, range_of_type
from ..registry import lowers
from ..torch_values.hints import cast_of_bytes, scale_at_run_time
from ..torch_values.tensor_types import dtype_of, refused

quantized_decomposed = torch.ops.quantized_decomposed
_quantize = quantized_decomposed.quantize_per_tensor
_dequantize = quantized_decomposed.dequantize_per_tensor
QUANTIZE = (_quantize.default, _quantize.tensor, _quantize.tensor2)
DEQUANTIZE = (_dequantize.default, _dequantize.tensor, _dequantize.tensor2)
"""Scale, zero point and limits are numbers, or tensors of the model."""


@lowers(*QUANTIZE)
def quantize_per_tensor(
    t: Tosa,
    input: Value,
    scale: Operand,
    zero_point: Operand,
    quant_min: Operand,
    quant_max: Operand,
    dtype: torch.dtype,
) -> Value:
    """fp32 [*S] -> integers [*S]"""
    target = _quantization(t, scale, zero_point, quant_min, quant_max, dtype)
    x = converted(t, input, DType.FP32)
    integers = quantized(t, x, target)
    return _as_bytes_if_unsigned(integers, dtype)


class _Parameters(NamedTuple):
    """The parameters of a quantize or dequantize operator as Python numbers."""

    scale: float
    zero_point: int
    quant_min: int
    quant_max: int

    def lowered_by(self, offset: int) -> _Parameters:
        """Return the parameters for integers that are ``offset`` less."""
        return _Parameters(
            self.scale,
            self.zero_point - offset,
            self.quant_min - offset,
            self.quant_max - offset,
        )


@lowers(*QUANTIZE, on=Lazy)
def requantize_per_tensor(
    t: Tosa,
    input: Lazy,
    scale: Operand,
    zero_point: Operand,
    quant_min: Operand,
    quant_max: Operand,
    dtype: torch.dtype,
) -> Value:
    """lazy [*S] -> integers [*S]: emits the operators of the lazy value"""
    target = _quantization(t, scale, zero_point, quant_min, quant_max, dtype)
    integers = input.integer(t, target)
    return _as_bytes_if_unsigned(integers, dtype)


def _as_bytes_if_unsigned(q: Value, dtype: torch.dtype) -> Value:
    """Return the int8 integers ``q`` as ``Bytes`` if ``dtype`` is uint8, else ``q``."""
    return Bytes(q) if dtype is torch.uint8 else q


def _quantization(
    t: Tosa,
    scale: Operand,
    zero_point: Operand,
    quant_min: Operand,
    quant_max: Operand,
    dtype: torch.dtype,
) -> Quantization:
    """Return the arguments of a quantize operator as a Quantization.

    uint8 becomes int8. Raises Unsupported if the scale is no positive number of fp32,
    or if the limits exceed the type.
    """
    parameters = _read_parameters(t, scale, zero_point, quant_min, quant_max)
    expect_scale(parameters.scale)
    if dtype is torch.uint8:
        parameters = parameters.lowered_by(HALF)
        dtype = torch.int8
    element = dtype_of(dtype)
    scale, zero_point, quant_min, quant_max = parameters
    t.refuse_unless(
        inside((quant_min, quant_max), range_of_type(element)),
        f"{quant_min}..{quant_max} is more than {element}",
    )
    return Quantization(scale, zero_point, quant_min, quant_max, element)


@lowers(*DEQUANTIZE, on=Bytes)
@lowers(*DEQUANTIZE, lazy=True)
def dequantize_per_tensor(
    t: Tosa,
    input: Value,
    scale: Operand,
    zero_point: Operand,
    quant_min: Operand,
    quant_max: Operand,
    dtype: torch.dtype,
    out_dtype: torch.dtype | None,
) -> Value:
    """integers or uint8 [*S] -> lazy [*S]; emits no operators"""
    parameters = _read_parameters(t, scale, zero_point, quant_min, quant_max)
    expect_scale(parameters.scale)
    _expect_fp32(t, out_dtype)
    integers, offset = _as_signed(input)
    parameters = parameters.lowered_by(offset)
    _narrow_range(integers, parameters.quant_min, parameters.quant_max)
    return Scaled(integers, Scale(parameters.scale), parameters.zero_point)


def _as_signed(x: Value) -> tuple[Value, int]:
    """Return the signed integers of x, and the number by which they are less than x."""
    if isinstance(x, Bytes):
        return x.q, HALF
    return x, 0


@lowers(quantized_decomposed.dequantize_per_channel.default, on=Bytes)
@lowers(quantized_decomposed.dequantize_per_channel.default, lazy=True)
def dequantize_per_channel(
    t: Tosa,
    input: Value,
    scales: Value,
    zero_points: Value | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    out_dtype: torch.dtype | None,
) -> Scaled:
    """integers [*A,C,*B], scales [C], zero points [C] -> lazy [*A,C,*B]

    Emits no operators. The zero points must be equal.
    """
    _expect_fp32(t, out_dtype)
    t.refuse_unless(scales.constant is not None, "its scales are computed at run time")
    low = high = 0
    if zero_points is not None:
        low, high = range_of(zero_points)
    t.refuse_unless(
        low == high,
        "its channels have different zero points, or none that are known; TOSA has one"
        " for all",
    )
    integers, offset = _as_signed(input)
    _narrow_range(integers, quant_min - offset, quant_max - offset)
    scale = Scale(1.0, (scales,))
    return Scaled(integers, scale, low - offset, axis % input.rank)


@lowers(torch.ops.aten.to.dtype, torch.ops.aten._to_copy.default, on=Bytes)
def bytes_to_floats(
    t: Tosa, input: Bytes, dtype: torch.dtype | None, *settings: Any
) -> Value:
    """uint8 [*S] -> the same numbers as fp32 [*S]; on a target without floats, a lazy
    value with a scale of 1.

    Raises Unsupported for a cast to any other type.
    """
    if dtype is not torch.float32:
        name = None if input.held is None else input.held.name
        raise refused(cast_of_bytes(dtype, name))
    y = Scaled(input.q, Scale(1.0), -HALF)
    return y.real(t) if "FP" in t.spec.profiles else y


def _narrow_range(integers: Value, quant_min: int, quant_max: int) -> None:
    """Narrow the known range of a constant to the limits of its quantization.

    A tensor that is computed at run time may hold integers outside of these limits, so
    its range stays.
    """
    if integers.constant is not None:
        integers.range = meet(range_of(integers), (quant_min, quant_max))


def _expect_fp32(t: Tosa, out_dtype: torch.dtype | None) -> None:
    """Raise Unsupported unless ``out_dtype`` is float32; None means float32."""
    t.refuse_unless(
        out_dtype in (None, torch.float32),
        f"dequantizing to {out_dtype} is not lowered, only to float32",
    )


def _read_parameters(
    t: Tosa, scale: Operand, zero_point: Operand, quant_min: Operand, quant_max: Operand
) -> _Parameters:
    """Return the parameters as Python numbers. Constant tensors are read.

    Raises Unsupported if one of them is computed at run time.
    """
    if isinstance(scale, Value):
        t.refuse_unless(scale.constant is not None, scale_at_run_time())
        number: float = materialize(scale).item()
    else:
        number = scale
    return _Parameters(
        number,
        quant_min=_read_integer(t, quant_min),
        quant_max=_read_integer(t, quant_max),
        zero_point=_read_integer(t, zero_point),
    )


def _read_integer(t: Tosa, value: Operand) -> int:
    """Return the number that all elements of ``value``, a constant of integers, equal.

    Return a Python number as it is. Raises Unsupported if the elements differ, or if
    ``value`` is computed at run time.
    """
    if not isinstance(value, Value):
        return value  # type: ignore[return-value]
    low, high = range_of(value)
    t.refuse_unless(
        value.constant is not None and low == high,
        "its zero point or limits are not known",
    )
    return low
