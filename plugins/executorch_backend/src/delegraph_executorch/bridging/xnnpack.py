"""XNNPACK, ExecuTorch's backend for CPUs."""

from __future__ import annotations

import torch
from delegraph.io.quiet import quietly
from torch.fx import Node

from . import bridge

with quietly():
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner as TheirPartitioner
    from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend as TheirBackend


def _has_no_dimensions(node: Node) -> str | None:
    """A number among the operands becomes a constant of one dimension in XNNPACK, and so does the result."""
    val = node.meta.get("val")
    if isinstance(val, torch.Tensor) and val.dim() == 0 and any(isinstance(a, (int, float)) for a in node.args):
        return "XNNPACK's runtime gives a result without dimensions one, where an operand is a number"
    return None


XnnpackBackend, XnnpackPartitioner, XnnpackRuntime = bridge(TheirBackend, TheirPartitioner, _has_no_dimensions)
