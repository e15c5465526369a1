"""Write nodes of quantized values: each is between DequantizeLinear and QuantizeLinear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir


class NodeWriter:
    """Inserts nodes into a graph, all before one node and with one name."""

    def __init__(self, graph: ir.Graph, name: str | None, before: ir.Node) -> None:
        self._graph = graph
        self._name = name
        self._before = before

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
        self._graph.insert_before(self._before, node)
        return node.outputs[0]

    def quantized(self, value: ir.Value, like: ir.Node) -> ir.Value:
        """Return ``value``, quantized with the scale of ``like`` and dequantized."""
        scale = like.inputs[1:]
        small = self.add("QuantizeLinear", [value, *scale])
        return self.add("DequantizeLinear", [small, *scale])

    def reshaped(self, value: ir.Value, sizes: Sequence[int]) -> ir.Value:
        """Return ``value`` with the shape ``sizes``; -1: the size that remains."""
        name = f"sizes_{len(self._graph.initializers)}"
        tensor = ir.tensor(np.array(sizes, np.int64), name=name)
        shape = ir.Value(name=name, const_value=tensor)
        shape.shape = ir.Shape([len(sizes)])
        shape.type = ir.TensorType(ir.DataType.INT64)
        self._graph.initializers[name] = shape
        return self.add("Reshape", [value, shape])


def only_reader(node: ir.Node) -> ir.Node | None:
    """Return the node that reads the result of ``node``; None if there are several."""
    readers = list(node.outputs[0].consumers())
    return readers[0] if len(readers) == 1 else None
