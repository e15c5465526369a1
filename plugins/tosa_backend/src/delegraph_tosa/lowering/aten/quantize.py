"""Quantize and dequantize, of tensors and of channels, as PT2E writes them (``quantized_decomposed``)."""

from __future__ import annotations

import torch
import torch.ao.quantization.fx._decomposed  # registers the operators; so did what exports them

from ...ir.graph import Value
from ...ir.types import DType
from ..builder import Tosa
from ..lazy import Lazy, Scaled, quantized
from ..promotion import converted
from ..quantization import Quantization, Scale, expect_scale
from ..ranges import inside, meet, range_of, range_of_type
from ..registry import lowers, lowers_quantized
from ..torch_types import dtype_of

quantized_decomposed = torch.ops.quantized_decomposed


@lowers(quantized_decomposed.quantize_per_tensor.default)
def quantize_per_tensor(
    t: Tosa, input: Value, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Value:
    """fp32 [*S] -> integers [*S]"""
    return quantized(t, converted(t, input, DType.FP32), _wanted(t, scale, zero_point, quant_min, quant_max, dtype))


@lowers_quantized(quantized_decomposed.quantize_per_tensor.default)
def requantize_per_tensor(
    t: Tosa, input: Lazy, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Value:
    """[*S] -> integers [*S]: the last operator of a chain of integers"""
    return input.integer(t, _wanted(t, scale, zero_point, quant_min, quant_max, dtype))


def _wanted(t: Tosa, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype) -> Quantization:
    expect_scale(scale)
    element = dtype_of(dtype)
    t.require(
        inside((quant_min, quant_max), range_of_type(element)), f"{quant_min}..{quant_max} is more than {element}"
    )
    return Quantization(scale, zero_point, quant_min, quant_max, element)


@lowers(quantized_decomposed.dequantize_per_tensor.default, lazy=True)
def dequantize_per_tensor(
    t: Tosa,
    input: Value,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    out_dtype: torch.dtype | None,
) -> Value:
    """integers [*S] -> [*S], nothing computed"""
    expect_scale(scale)
    _expect_fp32(t, out_dtype)
    return Scaled(_within(input, quant_min, quant_max), Scale(scale), zero_point)


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
) -> Value:
    """integers [*A,C,*B], scales [C], zero points int64 [C] that are equal -> [*A,C,*B], nothing computed"""
    _expect_fp32(t, out_dtype)
    t.require(scales.constant is not None, "its scales are computed at run time")
    low, high = (0, 0) if zero_points is None else range_of(zero_points)
    t.require(low == high, "its channels have different zero points, or none that are known; TOSA has one for all")
    return Scaled(_within(input, quant_min, quant_max), Scale(1.0, (scales,)), low, axis % input.rank)


def _within(input: Value, quant_min: int, quant_max: int) -> Value:
    """A weight with what the program says of its integers; what arrives may be anything."""
    if input.constant is not None:
        input.range = meet(range_of(input), (quant_min, quant_max))
    return input


def _expect_fp32(t: Tosa, out_dtype: torch.dtype | None) -> None:
    t.require(out_dtype in (None, torch.float32), f"dequantizing to {out_dtype} is not lowered, only to float32")
