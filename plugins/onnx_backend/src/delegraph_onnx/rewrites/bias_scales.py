"""Give each quantized bias the scale of the products to which it is added.

ONNX Runtime and Qualcomm's compiler add the integers of a bias to sums of products,
whose scale is that of the input times that of the weight. They ignore the scale and the
zero point of the bias. Calls of a shared layer have inputs of several scales, but share
a bias, which fits one of them. So other calls get a bias of their own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from .graph_writer import GraphWriter, add_constant
from .quantized_layers import (
    BYTES,
    SHORTS,
    Numbers,
    QuantizedLayer,
    dequantized,
    layer_of,
    number_of,
    optional_input,
    producer,
)

LARGEST = 2**31 - 1
TOLERANCE = 1e-5
"""The largest relative difference of two scales that are the same."""
TOO_LARGE = "the bias does not fit 32 bits at the scale of the products"


class _Bias(NamedTuple):
    """A constant that a node adds to the products of a quantized layer."""

    layer: QuantizedLayer
    reader: ir.Node
    """The node that adds it: Add, or the product itself."""
    input_index: int
    """Its position among the inputs of ``reader``."""

    @property
    def value(self) -> ir.Value | None:
        return self.reader.inputs[self.input_index]


def rescale_biases(model: ir.Model, for_npu: bool) -> bool:
    """Replace quantized biases that have another scale than their products.

    Return False if a bias is too large for that. ``for_npu``: quantize floating-point
    biases as well. NPUs compute transposed convolutions and layers of 16 bits in
    integers, too; ONNX Runtime's CPU does not.
    """
    writer = _BiasWriter(model, for_npu)
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        for index in range(len(node.inputs)):
            bias = _bias_at(node, index)
            if bias is not None and not writer.rescale(bias):
                return False
    return True


def _bias_at(node: ir.Node, index: int) -> _Bias | None:
    """Return the input ``index`` of a node if it may be a bias, else None."""
    product: ir.Node | None = node
    if node.op_type == "Add":
        product = producer(node.inputs[1 - index], "MatMul")
    elif index != 2:
        return None
    layer = None if product is None else layer_of(product)
    return None if layer is None else _Bias(layer, node, index)


class _BiasWriter:
    """Writes biases. Layers of a graph share one if their scales are equal."""

    def __init__(self, model: ir.Model, for_npu: bool) -> None:
        self._model = model
        self._for_npu = for_npu
        self._written: dict[tuple[Any, ...], ir.Value] = {}

    def rescale(self, bias: _Bias) -> bool:
        """Give a bias the scale of the products; return False if it is too large."""
        dequantize = producer(bias.value, "DequantizeLinear")
        if dequantize is None:
            floats = number_of(bias.value)
        else:
            floats = dequantized(dequantize)
        if floats is None or not self._has_integers(bias.layer):
            return True
        has_channels = floats.ndim > 0 and _is_int32(dequantize)
        if floats.ndim != 1 and not has_channels:
            # no bias, but an operand of a sum, whose scale may differ
            return True
        scale = bias.layer.scale_of_products(floats.shape[-1])
        if scale is None:
            return True
        integers = np.rint(floats / scale)
        if not (np.abs(integers) <= LARGEST).all():
            return False
        if dequantize is None:
            is_right = not self._for_npu
        else:
            is_right = _has_scale(dequantize, scale)
        if not is_right:
            self._replace(bias, integers, scale)
        return True

    def _has_integers(self, layer: QuantizedLayer) -> bool:
        """Return whether the products of a layer are computed in integers.

        Qualcomm's compiler does so for 8 and 16 bits. ONNX Runtime does so for 8 bits,
        but not for transposed convolutions.
        """
        integers = layer.of_input.inputs[0]
        dtype = None if integers is None else integers.dtype
        if layer.product.op_type == "ConvTranspose":
            return self._for_npu and dtype in (*BYTES, *SHORTS)
        return dtype in BYTES or (self._for_npu and dtype in SHORTS)

    def _replace(self, bias: _Bias, integers: Numbers, scale: Numbers) -> None:
        """Replace a bias by the result of a new node that dequantizes ``integers``."""
        of_input = bias.layer.of_input.inputs[1]
        of_weight = bias.layer.of_weight.inputs[1]
        key = (bias.value, bias.reader.graph, of_input, of_weight)
        if key not in self._written:
            self._written[key] = self._dequantize(bias, integers, scale)
        bias.reader.replace_input_with(bias.input_index, self._written[key])

    def _dequantize(self, bias: _Bias, integers: Numbers, scale: Numbers) -> ir.Value:
        """Return the result of a new node that dequantizes ``integers``."""
        assert bias.value is not None
        replaced = bias.value.producer()
        name = bias.reader.name if replaced is None else replaced.name
        inputs = [
            add_constant(self._model, "bias", numbers)
            for numbers in (
                integers.astype(np.int32),
                scale.astype(np.float32),
                np.zeros(scale.shape, np.int32),
            )
        ]
        writer = GraphWriter(self._model, bias.reader, name)
        result = writer.add("DequantizeLinear", inputs, axis=integers.ndim - 1)
        result.shape = bias.value.shape
        result.type = bias.value.type
        return result


def _is_int32(dequantize: ir.Node | None) -> bool:
    """Return whether a node dequantizes int32."""
    integers = None if dequantize is None else dequantize.inputs[0]
    return integers is not None and integers.dtype is ir.DataType.INT32


def _has_scale(dequantize: ir.Node, scale: Numbers) -> bool:
    """Return whether a node dequantizes int32 with ``scale``, and without a zero point."""
    present_scale = number_of(dequantize.inputs[1])
    zero_point = number_of(optional_input(dequantize, 2))
    if present_scale is None or not _is_int32(dequantize):
        return False
    if zero_point is not None and zero_point.any():
        return False
    return np.allclose(present_scale, scale, rtol=TOLERANCE, atol=0)
