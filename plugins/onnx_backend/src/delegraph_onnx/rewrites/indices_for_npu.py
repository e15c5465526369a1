"""Remove expansions of index tensors that have one shape, for NPUs.

torch.onnx writes ``x[i, j]`` so that i and j are expanded to their common shape, which
is computed. Qualcomm's gathers with several index tensors fail at the first call unless
the shapes of the indices are known.
"""

from __future__ import annotations

import onnx_ir as ir

from .quantized_layers import producer


def simplify_indices(model: ir.Model) -> None:
    """Remove expansions that keep the shape of an index tensor."""
    for node in list(model.graph):
        index = node.inputs[0] if node.op_type == "Expand" else None
        sizes = _sizes(index)
        if index is not None and sizes is not None:
            if sizes == _common_sizes(node.inputs[1]):
                ir.convenience.replace_all_uses_with(node.outputs[0], index)


def _common_sizes(shape: ir.Value | None) -> list[int] | None:
    """Return the common shape of index tensors; None if it is unknown.

    ``shape``: how torch.onnx writes it, the shape of their maximum.
    """
    node = producer(shape, "Shape")
    largest = None if node is None else producer(node.inputs[0], "Max")
    if largest is None:
        return None
    first = _sizes(largest.inputs[0])
    return first if all(_sizes(value) == first for value in largest.inputs) else None


def _sizes(value: ir.Value | None) -> list[int] | None:
    """Return the shape of a value; None if it is not known when the model is written."""
    if value is None or value.shape is None or value.shape.is_dynamic():
        return None
    return list(value.shape.numpy())
