"""Mark calls that compute in integers for ExecuTorch's Arm backends."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

ARM = "_arm_annotation_info"
"""Key of a call's custom metadata.

Arm's quantizers set it to tell Arm's partitioners which calls they quantized.
"""

DECOMPOSED = ("aten.mean.dim",)
"""Operators that Arm composes of several others.

Each of these needs a scale that only Arm's own quantizers choose.
"""

LAYERS = ("aten.convolution.default", "aten.linear.default")


def mark_quantized(edge: ExportedProgram) -> None:
    """Mark the calls between dequantize and quantize.

    Arm's partitioners take only calls with this mark, which Arm's own quantizers set.
    """
    for node in _between(edge):
        node.meta["custom"] = {
            **(node.meta.get("custom") or {}),
            ARM: {"quantized": True},
        }


def computes_channels(node: Node) -> bool:
    """Return whether a call quantizes or dequantizes computed values by channels.

    A layer with a computed weight does so, too. Arm's partitioners take the call alone,
    and its compiler fails on it.
    """
    if "dequantize_per_channel" in str(node.target):
        node = node.all_input_nodes[0]
    return node.op == "call_function" and ".quantize_per_channel" in str(node.target)


def _between(edge: ExportedProgram) -> set[Node]:
    """Return the calls that compute only on dequantized and constant floats.

    All their float results must end in a quantize, possibly through such calls.
    """
    calls = [
        n for n in edge.graph.nodes if n.op == "call_function" and not _converts(n)
    ]
    signature = edge.graph_signature
    constants = {
        *signature.inputs_to_parameters,
        *signature.inputs_to_buffers,
        *signature.inputs_to_lifted_tensor_constants,
    }
    found = set()
    for node in calls:
        has_floats = any(_is_float(v) for v in node.all_input_nodes)
        if has_floats and _is_taken(node, constants):
            found.add(node)
    before = None
    # A removed call may leave its neighbours without a quantize or dequantize.
    while before != len(found):
        before = len(found)
        for node in calls:
            floats = [
                v
                for v in node.all_input_nodes
                if _is_float(v) and v.name not in constants
            ]
            is_fed = all("dequantize" in str(v.target) or v in found for v in floats)
            if not floats or not is_fed:
                found.discard(node)
        for node in reversed(calls):
            is_used = all(v in found or _converts(v) for v in node.users)
            if _is_float(node) and not is_used:
                found.discard(node)
    return found


def _is_taken(node: Node, constants: Collection[str]) -> bool:
    """Return whether Arm's passes lower a call in integers.

    They cannot compute a weight, or values with a scale for each channel, at run time.
    """
    if any(
        "dequantize_per_channel" in str(v.target) and _computed(v, constants)
        for v in node.all_input_nodes
    ):
        return False
    if not any(name in str(node.target) for name in LAYERS):
        return not any(name in str(node.target) for name in DECOMPOSED)
    weight: Any = node.args[1]
    return not _computed(weight, constants)


def _computed(value: Node, constants: Collection[str]) -> bool:
    """Return whether ``value``, or the value that it dequantizes, is not constant."""
    return (value.all_input_nodes or [value])[0].name not in constants


def _converts(node: Node) -> bool:
    return "quantize_per_" in str(node.target)


def _is_float(node: Node) -> bool:
    """Return whether a node is a float tensor, or several of them, as of a split."""
    value: Any = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(v, torch.Tensor) and v.is_floating_point() for v in values)
