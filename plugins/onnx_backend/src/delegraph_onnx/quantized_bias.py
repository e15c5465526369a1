"""Give each quantized bias the scale of the products to which it is added.

ONNX Runtime and Qualcomm's compiler add the integers of a bias to sums of products,
whose scale is that of the input times that of the weight. They ignore the scale of the
bias. Calls of a shared layer have inputs of several scales, but share a bias, which
fits one of them. So other calls get a bias of their own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

LARGEST = 2**31 - 1
TOLERANCE = 1e-5
"""The largest relative difference of two scales that are the same."""
TOO_LARGE = "the bias does not fit 32 bits at the scale of the products"
BYTES = (ir.DataType.INT8, ir.DataType.UINT8)
Numbers = np.ndarray[Any, Any]


class _Layer(NamedTuple):
    """A node that adds a constant bias to products of quantized values."""

    node: ir.Node
    place: int
    """Which of its inputs the bias is."""
    of_input: ir.Node
    """DequantizeLinear of the input."""
    of_weight: ir.Node


def rescale_biases(model: ir.Model) -> str | None:
    """Replace quantized biases that have another scale than their products.

    Return the name of a node with a bias that is too large for that, or None.
    """
    biases = _Biases(model.graph.initializers)
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        for place in range(len(node.inputs)):
            layer = _layer_at(node, place)
            if layer is not None and not biases.rescale(layer):
                return node.name
    return None


def maker(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """Return the node that computes ``value`` if it is an ``op_type``, else None."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == op_type else None


def _layer_at(node: ir.Node, place: int) -> _Layer | None:
    """Return the layer that may have the input ``place`` as its bias, or None."""
    product: ir.Node | None = node
    if node.op_type == "Add":
        product = maker(node.inputs[1 - place], "MatMul")
    elif node.op_type not in ("Conv", "Gemm") or place != 2:
        return None
    if product is None:
        return None
    of_input = maker(product.inputs[0], "DequantizeLinear")
    weight = product.inputs[1]
    turned = maker(weight, "Transpose")
    of_weight = maker(turned.inputs[0] if turned else weight, "DequantizeLinear")
    if of_input is None or of_weight is None:
        return None
    integers = of_input.inputs[0]
    if integers is None or integers.dtype not in BYTES:
        # ONNX Runtime's CPU computes layers of 16 bits in floats
        return None
    return _Layer(node, place, of_input, of_weight)


class _Biases:
    """The biases of a model. Calls in a graph share one if their scales are equal."""

    def __init__(self, initializers: Any) -> None:
        self._initializers = initializers
        self._made: dict[tuple[Any, ...], ir.Value] = {}

    def rescale(self, layer: _Layer) -> bool:
        """Give a layer a bias with the right scale. Return whether it fits 32 bits."""
        bias = layer.node.inputs[layer.place]
        dequantize = maker(bias, "DequantizeLinear")
        floats = _number(bias) if dequantize is None else _dequantized(dequantize)
        if floats is None or floats.ndim != 1:
            return True  # no bias of a layer
        product = _scale_of_products(layer, floats.size)
        if product is None:
            return True
        integers = np.rint(floats / product)
        if not (np.abs(integers) <= LARGEST).all():
            return False
        if dequantize is None or _has_scale(dequantize, product):
            return True
        scales = (layer.of_input.inputs[1], layer.of_weight.inputs[1])
        key = (dequantize, layer.node.graph, *scales)
        if key not in self._made:
            self._made[key] = self._dequantize(layer, dequantize, integers, product)
        layer.node.replace_input_with(layer.place, self._made[key])
        return True

    def _dequantize(
        self, layer: _Layer, replaced: ir.Node, integers: Numbers, scale: Numbers
    ) -> ir.Value:
        """Return the result of a new node that dequantizes a bias."""
        node = ir.Node(
            "",
            "DequantizeLinear",
            [
                self._constant(integers.astype(np.int32)),
                self._constant(scale.astype(np.float32)),
                self._constant(np.zeros(scale.shape, np.int32)),
            ],
            [ir.AttrInt64("axis", 0)],
            name=replaced.name,
        )
        graph: Any = layer.node.graph
        graph.insert_before(layer.node, node)
        result = node.outputs[0]
        result.shape = replaced.outputs[0].shape
        result.type = replaced.outputs[0].type
        return result

    def _constant(self, numbers: Numbers) -> ir.Value:
        name = f"bias/{len(self._initializers)}"  # torch has no such names
        tensor = ir.tensor(numbers, name=name)
        value = ir.Value(name=name, const_value=tensor)
        value.type = ir.TensorType(tensor.dtype)
        value.shape = ir.Shape(numbers.shape)
        self._initializers[name] = value
        return value


def _dequantized(node: ir.Node) -> Numbers | None:
    """Return the floats of a constant that ``node`` dequantizes; None if it is none."""
    integers, scale, zero_point = map(_number, [*node.inputs, None][:3])
    if integers is None or scale is None or integers.ndim > 1:
        return None
    offset = 0 if zero_point is None else zero_point.astype(np.float64)
    return (integers - offset) * scale


def _has_scale(dequantize: ir.Node, scale: Numbers) -> bool:
    """Whether a node dequantizes int32 with ``scale``."""
    integers, own = map(_number, dequantize.inputs[:2])
    if integers is None or own is None or integers.dtype != np.int32:
        return False
    return np.allclose(own, scale, TOLERANCE, 0)


def _scale_of_products(layer: _Layer, channels: int) -> Numbers | None:
    """Return the scale of products, one or one a channel; None if it is unknown."""
    of_input = _number(layer.of_input.inputs[1])
    of_weight = _number(layer.of_weight.inputs[1])
    if of_input is None or of_weight is None or of_input.size != 1:
        return None
    if of_weight.size not in (1, channels):
        return None
    return of_input.astype(np.float64).reshape(()) * of_weight


def _number(value: Any) -> Numbers | None:
    """Return a constant; None if a value is computed."""
    constant = None if value is None else value.const_value
    return None if constant is None else constant.numpy()
