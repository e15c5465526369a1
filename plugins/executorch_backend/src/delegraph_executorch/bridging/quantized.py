"""Mark calls that compute in integers for ExecuTorch's Arm backends.

Such a call is between dequantize and quantize: it reads dequantized floats, and its
result is quantized.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from .edge import calls_of

ARM = "_arm_annotation_info"
"""Key of a call's custom metadata.

Arm's quantizers set it to tell Arm's partitioners which calls they quantized.
"""

DECOMPOSED = ("aten.mean.dim",)
"""Operators that Arm replaces by several others.

Each of the others needs a scale that only Arm's own quantizers choose.
"""

LAYERS = ("aten.convolution.default", "aten.linear.default")


def mark_quantized(edge: ExportedProgram) -> None:
    """Mark the calls between dequantize and quantize.

    Arm's partitioners take only calls with this mark, which Arm's own quantizers set.
    """
    for node in _calls_in_integers(edge):
        node.meta["custom"] = {
            **(node.meta.get("custom") or {}),
            ARM: {"quantized": True},
        }


def computes_channels(node: Node) -> bool:
    """Return whether a call is a quantize per channel of a value computed at run time.

    A dequantize per channel that reads such a quantize counts, too. Arm's partitioners
    may put such a call alone into a partition, on which Arm's compiler fails.
    """
    if "dequantize_per_channel" in str(node.target):
        node = node.all_input_nodes[0]
    return node.op == "call_function" and ".quantize_per_channel" in str(node.target)


def _calls_in_integers(edge: ExportedProgram) -> set[Node]:
    """Return the calls that compute only on dequantized and constant floats.

    All their float results must be quantized. Several such calls may follow each other
    without a quantize and dequantize in between.
    """
    calls = [n for n in calls_of(edge) if not _converts(n)]
    signature = edge.graph_signature
    constants = {
        *signature.inputs_to_parameters,
        *signature.inputs_to_buffers,
        *signature.inputs_to_lifted_tensor_constants,
    }
    found = set()
    for node in calls:
        has_floats = any(_is_float(v) for v in node.all_input_nodes)
        if has_floats and _is_lowered_in_integers(node, constants):
            found.add(node)
    count_before = None
    # Repeat until no call is removed: a call depends on its neighbours in ``found``.
    while count_before != len(found):
        count_before = len(found)
        for node in calls:
            floats = [
                v
                for v in node.all_input_nodes
                if _is_float(v) and v.name not in constants
            ]
            reads_integers = all(
                "dequantize" in str(v.target) or v in found for v in floats
            )
            if not floats or not reads_integers:
                found.discard(node)
        for node in reversed(calls):
            is_quantized = all(v in found or _converts(v) for v in node.users)
            if _is_float(node) and not is_quantized:
                found.discard(node)
    return found


def _is_lowered_in_integers(node: Node, constants: Collection[str]) -> bool:
    """Return whether Arm's passes can lower a call in integers.

    Weights of layers, and values with a scale for each channel, must be constants.
    """
    if any(
        "dequantize_per_channel" in str(v.target) and _is_computed(v, constants)
        for v in node.all_input_nodes
    ):
        return False
    if not any(name in str(node.target) for name in LAYERS):
        return not any(name in str(node.target) for name in DECOMPOSED)
    weight: Any = node.args[1]
    return not _is_computed(weight, constants)


def _is_computed(value: Node, constants: Collection[str]) -> bool:
    """Return whether ``value``, or the first operand of its call, is not a constant."""
    source = value.all_input_nodes[0] if value.all_input_nodes else value
    return source.name not in constants


def _converts(node: Node) -> bool:
    """Return whether a call is a quantize or a dequantize."""
    return "quantize_per_" in str(node.target)


def _is_float(node: Node) -> bool:
    """Return whether a node's value is, or contains, a tensor of floats."""
    value: Any = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(v, torch.Tensor) and v.is_floating_point() for v in values)
