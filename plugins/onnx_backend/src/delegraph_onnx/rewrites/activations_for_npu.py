"""Quantize the results of layers of 16 bits before their activations, for NPUs.

Qualcomm's compiler computes a layer in integers if its result is quantized. In int8, it
fuses an activation between the two: the range of the integers is that of the activation.
The range of 16 bits is symmetric, so it does not fuse Relu or Clip. Therefore the result
of the layer is quantized before the activation as well. With the same scale, that changes
no result. The integers saturate at the upper bound of Clip, so Relu can replace Clip.
"""

from __future__ import annotations

import onnx_ir as ir

from .graph_writer import GraphWriter, only_reader
from .quantized_layers import PRODUCTS, number_of, optional_input

TOLERANCE = 1e-5
"""The relative error of an upper bound that is computed from a scale."""
LARGEST = 2**15 - 1


def quantize_before_activations(model: ir.Model) -> None:
    """Quantize the results of layers before Relu and Clip."""
    for node in list(model.graph):
        if node.op_type not in ("Relu", "Clip"):
            continue
        value = node.inputs[0]
        product = None if value is None else value.producer()
        quantize = only_reader(node)
        if product is None or product.op_type not in PRODUCTS:
            continue
        if only_reader(product) is not node or not _is_int16(quantize):
            continue
        assert value is not None and quantize is not None
        if node.op_type == "Relu" or _is_relu(node, quantize):
            writer = GraphWriter(model, quantize, node.name)
            small = writer.quantized(value, quantize)
            quantize.replace_input_with(0, writer.add("Relu", [small]))


def _is_relu(clip: ir.Node, quantize: ir.Node) -> bool:
    """Return whether Clip has the lower bound 0, and no integer is above its upper bound."""
    lower, upper = map(number_of, clip.inputs[1:3])
    scale = number_of(quantize.inputs[1])
    if lower is None or upper is None or scale is None or lower != 0:
        return False
    return bool(upper >= LARGEST * scale * (1 - TOLERANCE))


def _is_int16(node: ir.Node | None) -> bool:
    """Return whether a node quantizes to int16."""
    if node is None or node.op_type != "QuantizeLinear":
        return False
    zero_point = optional_input(node, 2)
    return zero_point is not None and zero_point.dtype is ir.DataType.INT16
