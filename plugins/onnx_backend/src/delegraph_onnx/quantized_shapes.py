"""Rewrite operators on shapes of quantized values so that an NPU takes them.

Qualcomm's compiler does not transpose five dimensions of 16 bits, and does not expand
constants of 16 bits. With a batch of one, such transposes have dimensions of size 1,
and four others. Most expansions keep the shape. Its gathers with several index tensors
fail at the first call unless the shapes of the indices are known.
"""

from __future__ import annotations

import onnx_ir as ir

from .node_writer import NodeWriter, only_reader
from .quantized_layers import producer

MOST_DIMENSIONS = 4


def simplify_shapes(model: ir.Model) -> None:
    """Remove expansions that keep the shape, and dimensions of 1 from transposes."""
    for node in list(model.graph):
        if node.op_type == "Expand":
            _remove_expand(node)
        elif node.op_type == "Transpose":
            _drop_dimensions(model.graph, node)


def _remove_expand(expand: ir.Node) -> None:
    """Remove a node that returns its operand."""
    source = expand.inputs[0]
    sizes = _sizes(source)
    if source is not None and sizes is not None:
        if sizes in (_sizes(expand.outputs[0]), _sizes_of_largest(expand.inputs[1])):
            ir.convenience.replace_all_uses_with(expand.outputs[0], source)


def _sizes_of_largest(shape: ir.Value | None) -> list[int] | None:
    """Return the common shape of index tensors; None if it is unknown.

    ``shape``: how torch.onnx writes their broadcast shape, the shape of their maximum.
    """
    node = producer(shape, "Shape")
    largest = None if node is None else producer(node.inputs[0], "Max")
    if largest is None:
        return None
    first = _sizes(largest.inputs[0])
    return first if all(_sizes(value) == first for value in largest.inputs) else None


def _drop_dimensions(graph: ir.Graph, transpose: ir.Node) -> None:
    """Transpose a quantized value without its dimensions of size 1."""
    source = producer(transpose.inputs[0], "DequantizeLinear")
    reader = only_reader(transpose)
    sizes = _sizes(transpose.inputs[0])
    if source is None or sizes is None or len(sizes) <= MOST_DIMENSIONS:
        return
    if reader is None or reader.op_type != "QuantizeLinear":
        return
    reversed_axes = range(len(sizes))[::-1]
    order = transpose.attributes.get_ints("perm", reversed_axes)
    kept = [axis for axis, size in enumerate(sizes) if size != 1]
    if len(kept) > MOST_DIMENSIONS:
        return
    writer = NodeWriter(graph, transpose.name, before=reader)
    small = writer.reshaped(source.outputs[0], [sizes[axis] for axis in kept])
    small = writer.quantized(small, source)
    small_order = [kept.index(axis) for axis in order if axis in kept]
    moved = writer.quantized(writer.add("Transpose", [small], perm=small_order), source)
    whole = writer.reshaped(moved, [sizes[axis] for axis in order])
    reader.replace_input_with(0, whole)


def _sizes(value: ir.Value | None) -> list[int] | None:
    """Return the shape of a value; None if it is not known when the model is written."""
    if value is None or value.shape is None or value.shape.is_dynamic():
        return None
    return list(value.shape.numpy())
