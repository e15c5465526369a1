"""Which calls compute in integers, told as ExecuTorch's Arm backends want it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

ARM = "_arm_annotation_info"
"""Key of a call's custom metadata by which Arm's quantizers tell Arm's partitioners
that they quantized it.
"""

DECOMPOSED = ("aten.mean.dim",)
"""What Arm composes of several operators, each of which needs a scale that only its own
quantizers give it.
"""

LAYERS = ("aten.convolution.default", "aten.linear.default")


def mark_quantized(edge: ExportedProgram) -> None:
    """Mark the calls between dequantize and quantize, whoever quantized the program.

    Arm's partitioners take of a quantized program what their own quantizers marked, and
    leave all else to the host.
    """
    for node in _between(edge):
        node.meta["custom"] = {
            **(node.meta.get("custom") or {}),
            ARM: {"quantized": True},
        }


def computes_channels(node: Node) -> bool:
    """Whether a call quantizes what is computed at run time by channels, or dequantizes
    the result of such a call.

    So does a layer whose weight is computed. Arm's partitioners take that call alone,
    and its compiler fails on it.
    """
    if "dequantize_per_channel" in str(node.target):
        node = node.all_input_nodes[0]
    return node.op == "call_function" and ".quantize_per_channel" in str(node.target)


def _between(edge: ExportedProgram) -> set[Node]:
    """Calls whose floats all come from dequantize and from constants, and all end in
    quantize, through such calls.
    """
    calls = [
        n for n in edge.graph.nodes if n.op == "call_function" and not _converts(n)
    ]
    constants = {
        *edge.graph_signature.inputs_to_parameters,
        *edge.graph_signature.inputs_to_buffers,
    }
    constants |= {*edge.graph_signature.inputs_to_lifted_tensor_constants}
    found = {
        n
        for n in calls
        if any(_is_float(v) for v in n.all_input_nodes) and _is_taken(n, constants)
    }
    before = None
    # what one pass leaves out may leave a call before or behind it alone
    while before != len(found):
        before = len(found)
        for node in calls:
            floats = [
                v
                for v in node.all_input_nodes
                if _is_float(v) and v.name not in constants
            ]
            if not floats or not all(
                "dequantize" in str(v.target) or v in found for v in floats
            ):
                found.discard(node)
        for node in reversed(calls):
            if _is_float(node) and not all(
                v in found or _converts(v) for v in node.users
            ):
                found.discard(node)
    return found


def _is_taken(node: Node, constants: Collection[str]) -> bool:
    """Whether Arm's passes lower a call in integers; they compute no weight, and no
    channels, at run time.
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
    """Whether ``value``, or what it dequantizes, is no constant."""
    return (value.all_input_nodes or [value])[0].name not in constants


def _converts(node: Node) -> bool:
    return "quantize_per_" in str(node.target)


def _is_float(node: Node) -> bool:
    """Whether a node is a tensor of floats, or several, as those of a split."""
    value: Any = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(v, torch.Tensor) and v.is_floating_point() for v in values)
