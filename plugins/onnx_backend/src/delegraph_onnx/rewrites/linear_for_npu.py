"""Rewrite quantized linear layers so that an NPU computes them in integers.

torch.onnx converts a linear layer of three dimensions or more to MatMul and Add. A
quantized product has no scale before the bias is added. So Qualcomm's provider computes
it in float16, and leaves the bias to the CPU. Gemm adds the bias itself, and takes two
dimensions: the layer becomes a reshape, Gemm and a reshape, each quantized.
"""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from .graph_writer import GraphWriter, only_reader
from .quantized_layers import QuantizedLayer, layer_of, producer


class _Linear(NamedTuple):
    """A quantized linear layer with a bias."""

    layer: QuantizedLayer
    of_bias: ir.Node
    """DequantizeLinear of the bias."""
    add: ir.Node
    activation: ir.Node | None
    """Relu or Clip of the sum; None if there is none."""
    result: ir.Node
    """QuantizeLinear of the result."""
    columns: int
    """The size of the last dimension of the input."""
    sizes: list[int]
    """The shape of the result; -1: known at run time."""


def use_gemm(model: ir.Model) -> None:
    """Replace quantized linear layers with a bias by Gemm between reshapes."""
    for node in list(model.graph):
        linear = _linear_at(node) if node.op_type == "Add" else None
        if linear is not None:
            _write_gemm(model, linear)


def _linear_at(add: ir.Node) -> _Linear | None:
    """Return the quantized linear layer whose bias ``add`` adds, or None."""
    product = producer(add.inputs[0], "MatMul")
    layer = None if product is None else layer_of(product)
    of_bias = producer(add.inputs[1], "DequantizeLinear")
    if product is None or layer is None or of_bias is None:
        return None
    reader = only_reader(add)
    activation = None
    if reader is not None and reader.op_type in ("Relu", "Clip"):
        activation = reader
        reader = only_reader(activation)
    if reader is None or reader.op_type != "QuantizeLinear":
        return None
    weight = layer.of_weight.inputs[0]
    bias = of_bias.inputs[0]
    shape = add.outputs[0].shape
    if weight is None or bias is None or shape is None:
        return None
    if weight.const_value is None or layer.rank != 2 or only_reader(product) is None:
        return None
    if bias.dtype is not ir.DataType.INT32:
        return None
    columns = weight.const_value.shape.numpy()[1 - layer.channel_axis]
    sizes = [size if isinstance(size, int) else -1 for size in shape]
    if sizes.count(-1) > 1:
        return None
    return _Linear(layer, of_bias, add, activation, reader, columns, sizes)


def _write_gemm(model: ir.Model, linear: _Linear) -> None:
    """Write Reshape, Gemm and Reshape in place of MatMul and Add."""
    writer = GraphWriter(model, linear.result, linear.add.name)
    source = linear.layer.of_input
    weight = linear.layer.of_weight.outputs[0]
    rows = writer.reshaped(source.outputs[0], [-1, linear.columns])
    rows = writer.quantized(rows, source)
    gemm = writer.add(
        "Gemm",
        [rows, weight, linear.of_bias.outputs[0]],
        transB=1 - linear.layer.channel_axis,
    )
    if linear.activation is not None:
        bounds = linear.activation.inputs[1:]
        gemm = writer.add(linear.activation.op_type, [gemm, *bounds])
    result = writer.quantized(gemm, linear.result)
    whole = writer.reshaped(result, linear.sizes)
    linear.result.replace_input_with(0, whole)
