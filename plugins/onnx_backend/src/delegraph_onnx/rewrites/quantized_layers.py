"""Find the layers of a model that multiply quantized values by quantized weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators that multiply an input by a weight."""
BYTES = (ir.DataType.INT8, ir.DataType.UINT8)
SHORTS = (ir.DataType.INT16, ir.DataType.UINT16)
Numbers = np.ndarray[Any, Any]


class QuantizedLayer(NamedTuple):
    """A product of a quantized input and a quantized weight."""

    product: ir.Node
    """A node of ``PRODUCTS``."""
    of_input: ir.Node
    """DequantizeLinear of the input."""
    of_weight: ir.Node
    """DequantizeLinear of the weight."""
    rank: int
    """The number of dimensions of the weight."""
    channel_axis: int
    """The dimension of the stored weight that has the channels of the result."""

    def has_scales_of_channels(self) -> bool:
        """Return whether the weight has one scale, or one for each channel of the result."""
        scale = self.of_weight.inputs[1]
        if scale is None or scale.shape is None:
            return False
        if all(size == 1 for size in scale.shape):
            return True
        if self.product.op_type == "ConvTranspose":
            # with groups, the weight has the channels of one group
            if self.product.attributes.get_int("group", 1) > 1:
                return False
        axis = self.of_weight.attributes.get_int("axis", 1)
        return axis in (self.channel_axis, self.channel_axis - self.rank)

    def scale_of_products(self, channels: int) -> Numbers | None:
        """Return the scale of the products: one, or one for each of ``channels``.

        None if it is not known when the model is written.
        """
        of_input = number_of(self.of_input.inputs[1])
        of_weight = number_of(self.of_weight.inputs[1])
        if of_input is None or of_weight is None or of_input.size != 1:
            return None
        if not self.has_scales_of_channels():
            return None
        if of_weight.size not in (1, channels):
            return None
        factor = self.product.attributes.get_float("alpha", 1.0)
        scale: Numbers = of_input.astype(np.float64).reshape(()) * of_weight * factor
        return scale


def quantized_layers(model: ir.Model) -> Iterator[QuantizedLayer]:
    """Yield the quantized layers of a model, with those in branches and loop bodies."""
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        layer = layer_of(node)
        if layer is not None:
            yield layer


def layer_of(product: ir.Node) -> QuantizedLayer | None:
    """Return the quantized layer that a node computes; None if it is none."""
    if product.op_type not in PRODUCTS:
        return None
    weight = product.inputs[1]
    transpose = producer(weight, "Transpose")
    stored = weight if transpose is None else transpose.inputs[0]
    of_input = producer(product.inputs[0], "DequantizeLinear")
    of_weight = producer(stored, "DequantizeLinear")
    if of_input is None or of_weight is None:
        return None
    integers = of_weight.inputs[0]
    if integers is None or integers.shape is None:
        return None
    rank = len(integers.shape)
    # the axis of the channels of the result, in the weight that ``product`` reads
    if product.op_type == "Conv":
        axis = 0
    elif product.op_type == "ConvTranspose":
        axis = 1
    elif product.attributes.get_int("transB", 0):
        axis = 0
    else:
        axis = rank - 1
    if transpose is not None:
        # the same axis, in the weight that is stored
        reversed_axes = range(rank)[::-1]
        axis = list(transpose.attributes.get_ints("perm", reversed_axes))[axis]
    return QuantizedLayer(product, of_input, of_weight, rank, axis)


def producer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """Return the node that computes ``value`` if it is an ``op_type``, else None."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == op_type else None


def optional_input(node: ir.Node, index: int) -> ir.Value | None:
    """Return the input ``index`` of a node; None if it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def number_of(value: ir.Value | None) -> Numbers | None:
    """Return a constant; None if a value is computed."""
    constant = None if value is None else value.const_value
    return None if constant is None else constant.numpy()


def dequantized(node: ir.Node) -> Numbers | None:
    """Return the floats of a constant that ``node`` dequantizes; None if it is none."""
    integers = number_of(node.inputs[0])
    scale = number_of(node.inputs[1])
    zero_point = number_of(optional_input(node, 2))
    if integers is None or scale is None:
        return None
    if scale.size > 1:
        axis = node.attributes.get_int("axis", 1)
        sizes = [1] * integers.ndim
        sizes[axis] = -1
        scale = scale.reshape(sizes)
        if zero_point is not None:
            zero_point = zero_point.reshape(sizes)
    offset = 0 if zero_point is None else zero_point.astype(np.float64)
    return (integers - offset) * scale
