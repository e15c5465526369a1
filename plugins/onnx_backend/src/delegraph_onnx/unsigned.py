"""Write quantization to int8 as quantization to uint8, for ONNX Runtime's CPU.

On x86 processors without VNNI, ONNX Runtime's kernels for a uint8 and an int8 operand
add two products in 16 bits, which overflow. Kernels for two uint8 operands are exact on
every processor. Scales stay, and the results are the same: integers and zero points are
larger by 128.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

OFFSET = 128


def use_uint8(model: ir.Model) -> None:
    """Quantize weights and activations of ``model`` to uint8 instead of int8.

    Values stay int8 if an operator other than DequantizeLinear reads them, or if they
    cross the border of the model.
    """
    constants = _Constants(model.graph.initializers)
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type == "QuantizeLinear":
            _shift_activation(node, constants)
        elif node.op_type == "DequantizeLinear" and _is_int8_constant(node.inputs[0]):
            _shift_weight(node, constants)


def _shift_activation(node: ir.Node, constants: _Constants) -> None:
    """Quantize to uint8 if all readers dequantize the result."""
    [result] = node.outputs
    readers = list(result.consumers())
    if result.is_graph_output():
        return
    if any(reader.op_type != "DequantizeLinear" for reader in readers):
        return
    if all(_has_int8_zero_point(n) for n in (node, *readers)):
        for each in (node, *readers):
            each.replace_input_with(2, constants.shifted(each.inputs[2]))
        result.type = ir.TensorType(ir.DataType.UINT8)


def _shift_weight(node: ir.Node, constants: _Constants) -> None:
    """Dequantize a weight from uint8."""
    if _has_int8_zero_point(node):
        for place in (0, 2):
            node.replace_input_with(place, constants.shifted(node.inputs[place]))


def _has_int8_zero_point(node: ir.Node) -> bool:
    return len(node.inputs) > 2 and _is_int8_constant(node.inputs[2])


def _is_int8_constant(value: ir.Value | None) -> bool:
    if value is None or value.const_value is None:
        return False
    return value.dtype is ir.DataType.INT8


class _Constants:
    """The initializers of a model, and those of them that have become uint8."""

    def __init__(self, initializers: Any) -> None:
        self._initializers = initializers
        self._shifted: dict[ir.Value, ir.Value] = {}

    def shifted(self, value: Any) -> ir.Value:
        """Return a constant of int8 as one of uint8, made once for all its readers."""
        if value not in self._shifted:
            name = f"{value.name}/uint8"  # torch has no such names
            numbers = value.const_value.numpy().view(np.uint8) ^ np.uint8(OFFSET)
            constant = ir.Value(name=name, const_value=ir.tensor(numbers, name=name))
            constant.type = ir.TensorType(ir.DataType.UINT8)
            constant.shape = value.shape
            self._initializers[name] = constant
            self._shifted[value] = constant
        return self._shifted[value]
