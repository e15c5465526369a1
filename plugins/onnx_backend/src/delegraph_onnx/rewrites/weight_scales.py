"""Store weights as floats if their scales belong to the channels of the input.

Kernels for quantized products multiply each sum by the scale of its channel of the
result. They do not check to which dimension of the weight the scales belong. If that is
the dimension of the channels of the input, the results are wrong.
"""

from __future__ import annotations

import onnx_ir as ir

from .graph_writer import add_constant
from .quantized_layers import (
    dequantized,
    optional_input,
    producer,
    quantized_layers,
)

COMPUTED = (
    "the scales of the weight belong to the channels of the input, and are computed"
)


def dequantize_other_weights(model: ir.Model) -> bool:
    """Replace weights whose scales do not belong to channels of the result by floats.

    Return False if the scales of such a weight are computed.
    """
    for layer in quantized_layers(model):
        if layer.has_scales_of_channels():
            continue
        if not _store_floats(model, layer.of_weight):
            return False
        # NPUs add no quantized bias to products of floats
        bias = optional_input(layer.product, 2)
        of_bias = producer(bias, "DequantizeLinear")
        if of_bias is not None:
            _store_floats(model, of_bias)
    return True


def _store_floats(model: ir.Model, dequantize: ir.Node) -> bool:
    """Replace a dequantized constant by floats; return False if it is no constant."""
    floats = dequantized(dequantize)
    if floats is None:
        return False
    [value] = dequantize.outputs
    assert value.dtype is not None
    constant = add_constant(model, "floats", floats.astype(value.dtype.numpy()))
    ir.convenience.replace_all_uses_with(value, constant)
    return True
