"""Give each quantize and dequantize operator separate constants.

With the session option x64quantprecision, ONNX Runtime replaces the scale and the zero
point of each of these operators, and fails if two share one (onnxruntime 1.32).
"""

from __future__ import annotations

import onnx_ir as ir

from .graph_writer import add_constant


def separate_constants(model: ir.Model) -> None:
    """Copy constants that several quantize or dequantize operators read."""
    seen = set[ir.Value]()
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        for index, value in enumerate(node.inputs):
            if value is None or value.const_value is None:
                continue
            if value in seen:
                copy = add_constant(model, "copy", value.const_value.numpy())
                node.replace_input_with(index, copy)
            seen.add(value)
