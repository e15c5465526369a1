"""XNNPACK, ExecuTorch's backend for CPUs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from delegraph.io.quiet import quietly
from torch.fx import Node

from . import bridge

with quietly():
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner as TheirPartitioner
    from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend as TheirBackend


_WEIGHTS_AT = {
    "addmm": (0, 2),
    **dict.fromkeys(("mm", "prelu"), (1,)),
    **dict.fromkeys(("linear", "convolution", "conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d"), (1, 2)),
}
"""Positions of the constants that XNNPACK's runtime packs when it loads a blob, and then frees."""


def _has_no_dimensions(node: Node) -> str | None:
    """A number among the operands becomes a constant of one dimension in XNNPACK, and so does the result."""
    val = node.meta.get("val")
    if isinstance(val, torch.Tensor) and val.dim() == 0 and any(isinstance(a, (int, float)) for a in node.args):
        return "XNNPACK's runtime gives a result without dimensions one, where an operand is a number"
    return None


def _reads_a_packed_weight(node: Node, constants: Collection[Node]) -> str | None:
    """Another call that reads a weight as it was reads freed memory: the same through ExecuTorch itself."""
    for value in node.all_input_nodes:
        if value in constants and value not in _weights(node) and any(value in _weights(user) for user in value.users):
            return f"XNNPACK's runtime packs {value.name}, a weight of another call, and frees it as it was"
    return None


def _weights(node: Node) -> list[Any]:
    """The operands of a call that XNNPACK packs where they are constants."""
    packet = getattr(node.target, "overloadpacket", None)
    positions = _WEIGHTS_AT.get(packet.__name__, ()) if packet is not None else ()
    return [node.args[k] for k in positions if k < len(node.args)]


def _is_prelu_of_no_image(node: Node) -> str | None:
    """The partitioner takes it whatever its rank; compiling it fails."""
    if node.target is torch.ops.aten.prelu.default and node.meta["val"].dim() != 4:
        return "XNNPACK takes prelu of images [N, C, H, W] only"
    return None


def _refuses(node: Node, constants: Collection[Node]) -> str | None:
    return _has_no_dimensions(node) or _reads_a_packed_weight(node, constants) or _is_prelu_of_no_image(node)


XnnpackBackend, XnnpackPartitioner, XnnpackRuntime = bridge(TheirBackend, TheirPartitioner, _refuses)
