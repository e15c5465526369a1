"""Add nodes and constants to an ONNX model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir


def add_constant(model: ir.Model, kind: str, numbers: np.ndarray[Any, Any]) -> ir.Value:
    """Add an initializer to a model, and return its value.

    Branches and loop bodies can read it as well. ``kind``: the beginning of its name.
    """
    constants = model.graph.initializers
    # names that the exporter gives to constants have no slash
    name = f"{kind}/{len(constants)}"
    tensor = ir.tensor(numbers, name=name)
    value = ir.Value(name=name, const_value=tensor)
    value.type = ir.TensorType(tensor.dtype)
    value.shape = ir.Shape(numbers.shape)
    constants[name] = value
    return value


class GraphWriter:
    """Inserts nodes before a node, into its graph.

    ``name``: the name of all new nodes. It begins with the number of the call to which
    they belong.
    """

    def __init__(self, model: ir.Model, before: ir.Node, name: str | None) -> None:
        self._model = model
        self._before = before
        self._name = name

    def add(
        self, op_type: str, inputs: Sequence[Any], **attributes: int | Sequence[int]
    ) -> ir.Value:
        """Insert a node; return its value."""
        listed: list[ir.Attr] = []
        for name, given in attributes.items():
            if isinstance(given, int):
                listed.append(ir.AttrInt64(name, given))
            else:
                listed.append(ir.AttrInt64s(name, given))
        node = ir.Node("", op_type, inputs, listed, name=self._name)
        graph: Any = self._before.graph
        graph.insert_before(self._before, node)
        return node.outputs[0]

    def quantized(self, value: ir.Value, like: ir.Node) -> ir.Value:
        """Return ``value`` quantized and dequantized with scale and zero point of ``like``."""
        scale_and_zero_point = like.inputs[1:]
        integers = self.add("QuantizeLinear", [value, *scale_and_zero_point])
        return self.add("DequantizeLinear", [integers, *scale_and_zero_point])

    def reshaped(self, value: ir.Value, sizes: Sequence[int]) -> ir.Value:
        """Return ``value`` with the shape ``sizes``; -1: the size that remains."""
        shape = add_constant(self._model, "sizes", np.array(sizes, np.int64))
        return self.add("Reshape", [value, shape])


def only_reader(node: ir.Node) -> ir.Node | None:
    """Return the node that reads the result of ``node``; None if there are several."""
    readers = list(node.outputs[0].consumers())
    return readers[0] if len(readers) == 1 else None
