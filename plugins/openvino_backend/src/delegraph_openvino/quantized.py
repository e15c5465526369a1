"""Quantize and dequantize in the form that OpenVINO turns into integer kernels.

Its frontend has rules for them that fit quantized tensors of torch: they drop each dequantization, so that an int8
weight would be multiplied as it is. The form is that of its reader of ONNX: FakeQuantize and Convert, and Convert,
Subtract, Multiply.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import openvino as ov
from openvino.frontend.pytorch import ConversionExtension

op = ov.opset13


def extensions(types: list[Any]) -> list[Any]:
    """Rules for OpenVINO's frontend. ``types``: element types, by the numbers in place of dtypes."""
    return [ConversionExtension(name, partial(rule, types, "channel" in name)) for name, rule in RULES.items()]


def _quantize(types: list[Any], by_channel: bool, context: Any) -> Any:
    x, scale, zero = _operands(by_channel, context)
    least, most, kind = (_number(context, k + by_channel) for k in (3, 4, 5))
    ends = np.float32(least), np.float32(most)
    quantized = op.fake_quantize(x, *((end - zero) * scale for end in ends), *ends, most - least + 1)
    return op.convert(quantized, types[kind]).outputs()


def _dequantize(types: list[Any], by_channel: bool, context: Any) -> Any:
    x, scale, zero = _operands(by_channel, context)
    x = op.convert(x, ov.Type.f32)
    return op.multiply(op.subtract(x, zero) if zero.any() else x, scale).outputs()


def _operands(by_channel: bool, context: Any) -> tuple[Any, Any, Any]:
    """The tensor, and scale and zero point as arrays that broadcast against it.

    What the compiler is to turn into integer kernels has constants there, and no operators that compute them.
    """
    x = context.get_input(0)
    scale, zero = (context.get_input(k).get_node().data.astype(np.float32) for k in (1, 2))
    if by_channel:
        rank, axis = len(x.get_partial_shape()), _number(context, 3)
        scale, zero = (v.reshape([-1 if k == axis % rank else 1 for k in range(rank)]) for v in (scale, zero))
    return x, scale, zero


def _number(context: Any, place: int) -> int:
    return int(context.get_values_from_const_input(place))


RULES = {
    f"quantized_decomposed.{kind}_{name}": rule
    for kind, rule in (("quantize", _quantize), ("dequantize", _dequantize))
    for name in ("per_tensor.default", "per_tensor.tensor", "per_channel.default")
}
"""Operators with rules of our own, which are taken where scale and zero point are constants."""
