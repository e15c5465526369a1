"""Decompose operators of ``quantized_decomposed`` into ATen's.

Each formula has the arguments of its operator, and rounds as eager PyTorch does. A
scale or zero point may be in a tensor of one element. Eager PyTorch converts it to a
Python number; the formulas compute with the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .formulas import HALVES, convert_element_type


def _as_float32(input: Tensor) -> Tensor:
    """Return half precision as float32; other types as they are."""
    return input.to(torch.float32) if input.dtype in HALVES else input


def _along(parameters: Tensor, input: Tensor, axis: int) -> Tensor:
    """Reshape ``parameters``, one for each index of ``axis``, to broadcast to ``input``."""
    shape = [1] * input.dim()
    shape[axis] = parameters.shape[0]
    return parameters.reshape(shape)


def _product_dtype(out_dtype: torch.dtype | None) -> torch.dtype:
    """Return the type in which eager PyTorch multiplies by a scale in a tensor."""
    return torch.float64 if out_dtype == torch.float64 else torch.float32


def quantize_per_tensor(
    input: Tensor,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Tensor:
    """Quantize with one scale and zero point, given as numbers."""
    inverse = 1.0 / scale
    shifted = torch.round(_as_float32(input) * inverse) + zero_point
    return torch.clamp(shifted, quant_min, quant_max).to(dtype)


def dequantize_per_tensor(
    input: Tensor,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Dequantize with one scale and zero point, given as numbers."""
    return (input.to(out_dtype or torch.float32) - zero_point) * scale


def quantize_per_tensor_tensor(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: Any,
    quant_max: Any,
    dtype: torch.dtype,
) -> Tensor:
    """Quantize with a scale and zero point in tensors of one element.

    Eager PyTorch computes the reciprocal in float64, and the rest in float32.
    """
    inverse = (1.0 / scale.reshape([]).to(torch.float64)).to(torch.float32)
    shift = zero_point.reshape([]).to(torch.float32)
    shifted = torch.round(_as_float32(input) * inverse) + shift
    if isinstance(quant_min, Tensor):
        lowest = quant_min.reshape([]).to(torch.float32)
        highest = quant_max.reshape([]).to(torch.float32)
        return torch.minimum(torch.maximum(shifted, lowest), highest).to(dtype)
    return torch.clamp(shifted, quant_min, quant_max).to(dtype)


def dequantize_per_tensor_tensor(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: Any,
    quant_max: Any,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Dequantize with a scale and zero point in tensors of one element."""
    wide = _product_dtype(out_dtype)
    difference = input.to(wide) - zero_point.reshape([]).to(wide)
    # eager PyTorch rounds the difference to half precision before it multiplies
    if out_dtype in HALVES:
        difference = difference.to(out_dtype).to(wide)
    product = difference * scale.reshape([]).to(wide)
    return product.to(out_dtype) if out_dtype in HALVES else product


def _range_with_zero(input: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest of zero and all elements."""
    flat = input.reshape(-1)
    lowest = torch.amin(flat, 0)
    highest = torch.amax(flat, 0)
    lowest = torch.minimum(lowest, torch.zeros_like(lowest))
    highest = torch.maximum(highest, torch.zeros_like(highest))
    return lowest, highest


def _at_least(scale: Tensor, eps: float) -> Tensor:
    """Return the scale as a float32 tensor with one element that is at least ``eps``."""
    least = torch.full([1], eps, dtype=torch.float32)
    return torch.maximum(scale.reshape(1).to(torch.float32), least)


def choose_qparams(
    input: Tensor, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> Sequence[Tensor]:
    """Return the scale and zero point that map the range of ``input`` to the integers.

    Both are tensors with one element. ``eps`` is the least scale.
    """
    lowest, highest = _range_with_zero(input)
    scale = _at_least((highest - lowest) / float(quant_max - quant_min), eps)
    steps = torch.round(lowest.reshape(1).to(torch.float32) / scale).to(torch.int64)
    zero_point = torch.clamp(quant_min - steps, quant_min, quant_max)
    return scale.to(torch.float64), zero_point


def choose_qparams_symmetric(
    input: Tensor, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> Sequence[Tensor]:
    """Return the scale for a range that is symmetric around zero, and its zero point.

    Both are tensors with one element. ``eps`` is the least scale.
    """
    lowest, highest = _range_with_zero(input)
    largest = torch.maximum(-lowest, highest)
    scale = _at_least(largest / (float(quant_max - quant_min) / 2), eps)
    # zero is the middle of the integers: of 0 to 255, or of -128 to 127
    middle = 128 if dtype in (torch.uint8, torch.quint8) else 0
    return scale.to(torch.float64), torch.full([1], middle, dtype=torch.int64)


def choose_qparams_per_token(input: Tensor, dtype: torch.dtype) -> Sequence[Tensor]:
    """Return symmetric scales for int8, one for each row, and zero points of 0.

    float16 is computed in float32, as in eager PyTorch. The numbers are those of
    PyTorch's ``quantized_decomposed`` library.
    """
    largest = torch.amax(input.abs(), -1, keepdim=True)
    if largest.dtype == torch.float16:
        largest = largest.to(torch.float32)
    # 127 is the largest int8; a row of zeros gets a scale that is not 0
    scales = largest.clamp(min=1e-5) / 127
    return scales, torch.zeros_like(scales)


def choose_qparams_per_token_asymmetric(
    input: Tensor, dtype: torch.dtype
) -> Sequence[Tensor]:
    """Return scales and zero points for int8, -128 to 127, one for each row.

    The range includes zero. The zero point is computed from the end of the range with
    the smaller rounding error, as in eager PyTorch.
    """
    lowest = torch.amin(input, -1, keepdim=True)
    highest = torch.amax(input, -1, keepdim=True)
    lowest = torch.minimum(lowest, torch.zeros_like(lowest))
    highest = torch.maximum(highest, torch.zeros_like(highest))
    scale = ((highest - lowest) / 255.0).clamp(min=torch.finfo(torch.float32).eps)
    scaled_lowest = lowest / scale
    scaled_highest = highest / scale
    lowest_is_better = (-128 + scaled_lowest) + (127 + scaled_highest) > 0
    zero_point = torch.where(
        lowest_is_better, -128 - scaled_lowest, 127 - scaled_highest
    )
    zero_point = torch.clamp(zero_point, -128, 127).round()
    return scale.to(torch.float64), zero_point.to(torch.int64)


def quantize_per_channel(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Tensor:
    """Quantize with one scale and zero point for each index of ``axis``."""
    inverse = 1.0 / _along(scales, input, axis)
    shifted = torch.round(_as_float32(input) * inverse) + _along(
        zero_points, input, axis
    )
    return torch.clamp(shifted, quant_min, quant_max).to(dtype)


def dequantize_per_channel(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Dequantize with one scale and zero point for each index of ``axis``."""
    difference = (
        input if zero_points is None else input - _along(zero_points, input, axis)
    )
    return (difference * _along(scales, input, axis)).to(out_dtype or torch.float32)


def quantize_per_token(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Tensor:
    """Quantize each row along the last axis with a scale and zero point of its own.

    ``scales`` and ``zero_points`` have the size 1 on that axis.
    """
    shifted = torch.round(input * (1.0 / scales) + zero_points)
    return torch.clamp(shifted, quant_min, quant_max).to(dtype)


def dequantize_per_token(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Dequantize with one scale and zero point for each row (the last axis)."""
    return ((input - zero_points) * scales).to(output_dtype)


def _groups(input: Tensor, scales: Tensor, group_size: int) -> Tensor:
    """Return a matrix with a row for each group of elements that share a scale.

    A group has ``group_size`` elements. If each row of the input has one scale, a row
    that is shorter than ``group_size`` is one group.
    """
    if group_size > input.shape[-1] and scales.shape[-1] == 1:
        group_size = input.shape[-1]
    return input.reshape(-1, group_size)


def quantize_per_channel_group(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    group_size: int = 128,
) -> Tensor:
    """Quantize with one scale for each group of elements in a row."""
    groups = _groups(input, scales, group_size)
    inverse = 1.0 / scales.reshape(-1, 1)
    shifted = torch.round(groups * inverse + zero_points.reshape(-1, 1))
    return torch.clamp(shifted, quant_min, quant_max).to(dtype).reshape(input.shape)


def dequantize_per_channel_group(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    group_size: int = 128,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Dequantize with one scale for each group of elements in a row."""
    groups = _groups(input, scales, group_size)
    difference = groups if zero_points is None else groups - zero_points.reshape(-1, 1)
    return (difference * scales.reshape(-1, 1)).reshape(input.shape).to(output_dtype)


def fake_quant_per_channel(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """Quantize and dequantize with one scale for each index of ``axis``."""
    steps = _along(scales.to(torch.float32), input, axis)
    shift = _along(zero_points.to(torch.int32), input, axis)
    shifted = torch.round(input * (1.0 / steps)) + shift
    return (torch.clamp(shifted, quant_min, quant_max) - shift) * steps


QUANTIZED_FORMULAS: dict[str, Callable[..., Any]] = {
    "quantize_per_tensor.default": quantize_per_tensor,
    "quantize_per_tensor.tensor": quantize_per_tensor_tensor,
    "quantize_per_tensor.tensor2": quantize_per_tensor_tensor,
    "dequantize_per_tensor.default": dequantize_per_tensor,
    "dequantize_per_tensor.tensor": dequantize_per_tensor_tensor,
    "dequantize_per_tensor.tensor2": dequantize_per_tensor_tensor,
    "choose_qparams.tensor": choose_qparams,
    "choose_qparams_symmetric.tensor": choose_qparams_symmetric,
    "choose_qparams_per_token.default": choose_qparams_per_token,
    "choose_qparams_per_token_asymmetric.default": choose_qparams_per_token_asymmetric,
    "_choose_qparams_per_token_asymmetric_impl.default": (
        choose_qparams_per_token_asymmetric
    ),
    "quantize_per_channel.default": quantize_per_channel,
    "dequantize_per_channel.default": dequantize_per_channel,
    "quantize_per_token.default": quantize_per_token,
    "dequantize_per_token.default": dequantize_per_token,
    "quantize_per_channel_group.default": quantize_per_channel_group,
    "dequantize_per_channel_group.default": dequantize_per_channel_group,
    "fake_quant_per_channel.default": fake_quant_per_channel,
    "convert_element_type.no_fuse": convert_element_type,
}
"""Operator without its namespace -> formula.

PyTorch declares the operators only when a library such as torchao imports them.
"""
