"""Keep ONNX Runtime from quantizing floating-point weights.

If the input and the result of a layer are quantized, ONNX Runtime quantizes a constant
floating-point weight to int8 when it loads a model, with one scale (onnxruntime 1.32).
It does not quantize a weight that is computed. So the weight is reshaped to its own
shape, and that shape is the result of DequantizeLinear, which ONNX Runtime does not
compute when it loads a model. No data are copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from .graph_writer import GraphWriter, add_constant
from .quantized_layers import PRODUCTS, producer


def hide_float_weights(model: ir.Model) -> None:
    """Reshape constant floating-point weights of quantized inputs to their own shape."""
    hidden: dict[tuple[ir.Value, Any], ir.Value] = {}
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        if node.op_type not in PRODUCTS:
            continue
        if producer(node.inputs[0], "DequantizeLinear") is None:
            continue
        transpose = producer(node.inputs[1], "Transpose")
        reader = transpose or node
        index = 1 if transpose is None else 0
        weight = reader.inputs[index]
        if weight is None or weight.const_value is None:
            continue
        key = (weight, reader.graph)
        if key not in hidden:
            hidden[key] = _reshaped(model, weight, before=reader)
        reader.replace_input_with(index, hidden[key])


def _reshaped(model: ir.Model, weight: ir.Value, before: ir.Node) -> ir.Value:
    """Return ``weight`` in a shape that ONNX Runtime computes at each call."""
    assert weight.const_value is not None
    sizes = np.array(weight.const_value.shape.numpy(), np.int32)
    integers = add_constant(model, "sizes", sizes)
    scale = add_constant(model, "scale", np.array(1, np.float32))
    writer = GraphWriter(model, before, before.name)
    floats = writer.add("DequantizeLinear", [integers, scale])
    shape = writer.add("Cast", [floats], to=ir.DataType.INT64)
    result = writer.add("Reshape", [weight, shape])
    result.shape = weight.shape
    result.type = weight.type
    return result
