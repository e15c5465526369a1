"""Store weights as floats if their scales are not those of channels of the result.

Kernels for quantized products multiply a sum by one scale for each channel of the
result. They do not look at the dimension of the weight to which its scales belong. If
that is the dimension of the channels of the input, their results are wrong.
"""

from __future__ import annotations

import onnx_ir as ir

from .quantized_layers import Numbers, dequantized, quantized_layers

COMPUTED = (
    "the scales of the weight belong to the channels of the input, and are computed"
)


def dequantize_other_weights(model: ir.Model) -> str | None:
    """Replace weights whose scales do not belong to channels of the result by floats.

    Return the name of a node that dequantizes a computed weight of this kind, or None.
    """
    for layer in quantized_layers(model):
        if layer.has_scales_of_channels():
            continue
        floats = dequantized(layer.of_weight)
        if floats is None:
            return layer.product.name
        _replace(model, layer.of_weight.outputs[0], floats)
    return None


def _replace(model: ir.Model, value: ir.Value, floats: Numbers) -> None:
    """Replace a value by a constant of the same type."""
    assert value.dtype is not None
    name = f"weight/{len(model.graph.initializers)}"  # torch has no such names
    tensor = ir.tensor(floats.astype(value.dtype.numpy()), name=name)
    constant = ir.Value(name=name, const_value=tensor)
    constant.type = ir.TensorType(tensor.dtype)
    constant.shape = ir.Shape(floats.shape)
    model.graph.initializers[name] = constant
    ir.convenience.replace_all_uses_with(value, constant)
