"""Write quantization to signed integers as quantization to unsigned integers.

On x86 processors without VNNI, ONNX Runtime's kernels for a uint8 and an int8 operand
add two products in 16 bits, which overflow. Kernels for two uint8 operands are exact on
every processor. So models for the CPU have uint8 instead of int8.

Qualcomm's compiler takes depthwise convolutions, upsampling and 3-D convolutions of
uint16, but not of int16. So models for NPUs have uint16 instead of int16.

Scales stay, and the results are the same: integers and zero points are larger by half
of the range, such as 128.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from .graph_writer import add_constant
from .quantized_layers import optional_input

UNSIGNED = {
    ir.DataType.INT8: ir.DataType.UINT8,
    ir.DataType.INT16: ir.DataType.UINT16,
}
"""Types of integers -> those that replace them."""


def use_unsigned(model: ir.Model, signed: ir.DataType) -> None:
    """Quantize weights and activations of ``model`` to unsigned integers.

    ``signed``: the type to replace. Values keep it if an operator other than
    DequantizeLinear reads them, or if they cross the border of the model.
    """
    constants = _Constants(model, signed)
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        if node.op_type == "QuantizeLinear":
            _shift_activation(node, constants)
        elif node.op_type == "DequantizeLinear" and constants.has(node.inputs[0]):
            _shift_weight(node, constants)


def _shift_activation(node: ir.Node, constants: _Constants) -> None:
    """Quantize to unsigned integers if all readers dequantize the result."""
    [result] = node.outputs
    readers = list(result.consumers())
    if result.is_graph_output():
        return
    if any(reader.op_type != "DequantizeLinear" for reader in readers):
        return
    if all(constants.has_zero_point_of(user) for user in (node, *readers)):
        for user in (node, *readers):
            user.replace_input_with(2, constants.shifted(user.inputs[2]))
        result.type = ir.TensorType(UNSIGNED[constants.signed])


def _shift_weight(node: ir.Node, constants: _Constants) -> None:
    """Dequantize a weight from unsigned integers."""
    if constants.has_zero_point_of(node):
        # the integers and the zero point
        for index in (0, 2):
            node.replace_input_with(index, constants.shifted(node.inputs[index]))


class _Constants:
    """The constants of a signed type in a model, and unsigned ones that replace them."""

    def __init__(self, model: ir.Model, signed: ir.DataType) -> None:
        self.signed = signed
        self._model = model
        self._shifted: dict[ir.Value, ir.Value] = {}

    def has(self, value: ir.Value | None) -> bool:
        """Return whether a value is a constant of the signed type."""
        if value is None or value.const_value is None:
            return False
        return value.dtype is self.signed

    def has_zero_point_of(self, node: ir.Node) -> bool:
        """Return whether the zero point of a node is a constant of the signed type."""
        return self.has(optional_input(node, 2))

    def shifted(self, value: Any) -> ir.Value:
        """Return a constant with unsigned integers, made once for all its readers."""
        if value not in self._shifted:
            unsigned = UNSIGNED[self.signed].numpy()
            # to change the highest bit is to add half of the range
            highest = unsigned.type(1 << 8 * unsigned.itemsize - 1)
            numbers = np.asarray(value.const_value.numpy().view(unsigned) ^ highest)
            self._shifted[value] = add_constant(self._model, str(unsigned), numbers)
        return self._shifted[value]
