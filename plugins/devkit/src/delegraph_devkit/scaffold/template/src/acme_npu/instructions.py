"""Lists the operators of the device in one table, which the support check, the compiler and the runtime use.

So the compiler and the runtime support every operator that the check accepts. Replace the operators by yours.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

aten = torch.ops.aten

INSTRUCTIONS: dict[str, Any] = {
    "add": aten.add.Tensor,
    "mul": aten.mul.Tensor,
    "mm": aten.mm.default,
    "linear": aten.linear.default,
    "relu": aten.relu.default,
}
"""Name of the instruction in the blob -> the PyTorch operator whose result it computes, on float32 tensors."""

NAME_OF = {operator: name for name, operator in INSTRUCTIONS.items()}


def why_not(node: Node) -> str | None:
    """Return why the device does not take this call, or None. Users read the reason in their report."""
    if node.target not in NAME_OF:
        return "acme-npu has no instruction for it"
    if node.kwargs:
        return f"acme-npu computes it without {', '.join(node.kwargs)}"
    for operand in node.args:
        kind = _kind(operand)
        if kind not in ("a float32 tensor", "None"):  # None is a linear layer without bias
            return f"acme-npu computes with float32 tensors; an operand is {kind}"
    return None


def _kind(operand: Any) -> str:
    """Describe an operand for a reason. For a tensor, only type and shape are known, not the values."""
    value = operand.meta.get("val") if isinstance(operand, Node) else operand
    if isinstance(value, torch.Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor"
    return str(value)
