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
    variants = {"per_tensor.default": False, "per_tensor.tensor": False, "per_channel.default": True}
    return [
        ConversionExtension(f"quantized_decomposed.{kind}_{name}", partial(rule, types, by_channel))
        for kind, rule in (("quantize", _quantize), ("dequantize", _dequantize))
        for name, by_channel in variants.items()
    ]


def _quantize(types: list[Any], by_channel: bool, context: Any) -> Any:
    x, scale, zero = _operands(by_channel, context)
    least, most, kind = (_number(context, k + by_channel) for k in (3, 4, 5))
    low, high = (_computed(op.multiply, _computed(op.subtract, _float(end), zero), scale) for end in (least, most))
    quantized = op.fake_quantize(x, low, high, _float(least), _float(most), most - least + 1)
    return op.convert(quantized, types[kind]).outputs()


def _dequantize(types: list[Any], by_channel: bool, context: Any) -> Any:
    x, scale, zero = _operands(by_channel, context)
    x = op.convert(x, ov.Type.f32)
    if not isinstance(zero, np.ndarray) or zero.any():
        x = op.subtract(x, zero)
    return op.multiply(x, scale).outputs()


def _operands(by_channel: bool, context: Any) -> tuple[Any, Any, Any]:
    """The tensor, and scale and zero point as floats that broadcast against it; arrays where they are constants.

    What the compiler is to turn into integer kernels has constants there, and not operators that compute them.
    """
    x, *others = (context.get_input(k) for k in range(3))
    nodes = [value.get_node() for value in others]
    scale, zero = (
        node.data.astype(np.float32) if node.get_type_name() == "Constant" else op.convert(value, ov.Type.f32)
        for node, value in zip(nodes, others, strict=True)
    )
    if by_channel:
        rank, axis = len(x.get_partial_shape()), _number(context, 3)
        shape = np.array([-1 if k == axis % rank else 1 for k in range(rank)])
        scale, zero = (
            v.reshape(shape) if isinstance(v, np.ndarray) else op.reshape(v, shape, False) for v in (scale, zero)
        )
    return x, scale, zero


def _computed(operator: Any, *values: Any) -> Any:
    """A sum or product, of arrays at once."""
    if all(isinstance(value, np.ndarray) for value in values):
        return np.asarray({op.subtract: np.subtract, op.multiply: np.multiply}[operator](*values))
    return operator(*values)


def _number(context: Any, place: int) -> int:
    return int(context.get_values_from_const_input(place))


def _float(value: int) -> Any:
    return np.array(value, np.float32)
