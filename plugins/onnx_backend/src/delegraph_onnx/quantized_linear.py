"""Rewrite quantized linear layers so that an NPU computes them in integers.

torch.onnx converts a linear layer of three dimensions or more to MatMul and Add. A
quantized product has no scale before the bias is added. So Qualcomm's provider computes
it in float16, and leaves the bias to the CPU. Gemm adds the bias itself, and takes two
dimensions: the layer becomes a reshape, Gemm and a reshape, each quantized.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from .quantized_bias import maker


class _Layer(NamedTuple):
    """A quantized linear layer: the nodes that compute it."""

    of_input: ir.Node
    """DequantizeLinear of the input."""
    of_weight: ir.Node
    of_bias: ir.Node
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
    graph = model.graph
    for node in list(graph):
        layer = _layer_at(node) if node.op_type == "Add" else None
        if layer is not None:
            _Replacement(graph, layer).write()


def _layer_at(add: ir.Node) -> _Layer | None:
    """Return the quantized linear layer that ends with ``add``; None if it is none."""
    product = maker(add.inputs[0], "MatMul")
    of_bias = maker(add.inputs[1], "DequantizeLinear")
    if product is None or of_bias is None:
        return None
    of_input = maker(product.inputs[0], "DequantizeLinear")
    turned = maker(product.inputs[1], "Transpose")
    reader = _only_reader(add)
    activation = None
    if reader is not None and reader.op_type in ("Relu", "Clip"):
        activation = reader
        reader = _only_reader(activation)
    if reader is None or reader.op_type != "QuantizeLinear":
        return None
    if of_input is None or turned is None or _only_reader(product) is None:
        return None
    of_weight = maker(turned.inputs[0], "DequantizeLinear")
    weight = None if of_weight is None else of_weight.inputs[0]
    bias = of_bias.inputs[0]
    shape = add.outputs[0].shape
    if of_weight is None or weight is None or bias is None or shape is None:
        return None
    if weight.const_value is None or bias.dtype is not ir.DataType.INT32:
        return None
    _, columns = weight.const_value.shape.numpy()
    sizes = [size if isinstance(size, int) else -1 for size in shape]
    if sizes.count(-1) > 1:
        return None
    return _Layer(of_input, of_weight, of_bias, add, activation, reader, columns, sizes)


def _only_reader(node: ir.Node) -> ir.Node | None:
    """Return the node that reads the result of ``node``; None if there are several."""
    readers = list(node.outputs[0].consumers())
    return readers[0] if len(readers) == 1 else None


class _Replacement:
    """Writes the nodes that take the place of a layer."""

    def __init__(self, graph: ir.Graph, layer: _Layer) -> None:
        self._graph = graph
        self._layer = layer

    def write(self) -> None:
        """Write Reshape, Gemm and Reshape in place of MatMul and Add."""
        layer = self._layer
        source = layer.of_input
        rows = self._reshaped(source.outputs[0], [-1, layer.columns])
        rows = self._quantized(rows, source.inputs)
        gemm = self._add(
            "Gemm",
            [rows, layer.of_weight.outputs[0], layer.of_bias.outputs[0]],
            transB=1,
        )
        if layer.activation is not None:
            bounds = layer.activation.inputs[1:]
            gemm = self._add(layer.activation.op_type, [gemm, *bounds])
        result = self._quantized(gemm, layer.result.inputs)
        whole = self._reshaped(result, layer.sizes)
        layer.result.replace_input_with(0, whole)

    def _quantized(self, value: ir.Value, like: Any) -> ir.Value:
        """Return ``value``, quantized with the scale of the inputs ``like``."""
        scale = [like[1], *like[2:]]
        small = self._add("QuantizeLinear", [value, *scale])
        return self._add("DequantizeLinear", [small, *scale])

    def _reshaped(self, value: ir.Value, sizes: list[int]) -> ir.Value:
        name = f"sizes_{len(self._graph.initializers)}"
        tensor = ir.tensor(np.array(sizes, np.int64), name=name)
        shape = ir.Value(name=name, const_value=tensor)
        shape.shape = ir.Shape([len(sizes)])
        shape.type = ir.TensorType(ir.DataType.INT64)
        self._graph.initializers[name] = shape
        return self._add("Reshape", [value, shape])

    def _add(self, op_type: str, inputs: list[Any], **attributes: int) -> ir.Value:
        """Insert a node before the one that quantizes the result; return its value."""
        listed = [ir.AttrInt64(name, number) for name, number in attributes.items()]
        node = ir.Node("", op_type, inputs, listed, name=self._layer.add.name)
        self._graph.insert_before(self._layer.result, node)
        return node.outputs[0]
