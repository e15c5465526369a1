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

    The new nodes have the name of one node, so that they belong to the same call.
    """

    def __init__(self, model: ir.Model, before: ir.Node, name: str | None) -> None:
        self._model = model
        self._before = before
        self._name = name

    def add(
        self, op_type: str, inputs: Sequence[Any], **attributes: int | Sequence[int]
    ) -> ir.Value:
        """Insert a node; return its value."""
        listed = [
            ir.AttrInt64(name, given)
            if isinstance(given, int)
            else ir.AttrInt64s(name, given)
            for name, given in attributes.items()
        ]
        node = ir.Node("", op_type, inputs, listed, name=self._name)
        graph: Any = self._before.graph
        graph.insert_before(self._before, node)
        return node.outputs[0]

    def quantized(self, value: ir.Value, like: ir.Node) -> ir.Value:
        """Return ``value``, quantized with the scale of ``like`` and dequantized."""
        scale = like.inputs[1:]
        small = self.add("QuantizeLinear", [value, *scale])
        return self.add("DequantizeLinear", [small, *scale])

    def reshaped(self, value: ir.Value, sizes: Sequence[int]) -> ir.Value:
        """Return ``value`` with the shape ``sizes``; -1: the size that remains."""
        shape = add_constant(self._model, "sizes", np.array(sizes, np.int64))
        return self.add("Reshape", [value, shape])


def only_reader(node: ir.Node) -> ir.Node | None:
    """Return the node that reads the result of ``node``; None if there are several."""
    readers = list(node.outputs[0].consumers())
    return readers[0] if len(readers) == 1 else None
