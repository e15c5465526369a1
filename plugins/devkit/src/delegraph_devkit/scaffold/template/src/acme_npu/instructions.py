"""What the device computes: one table, which the support check, the compiler and the runtime read.

So what is accepted can be compiled, and what is compiled can be run. The operators of your device go here.
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
    """Why the device does not take this call; None if it does. Users read the reason in their report."""
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
    """What an operand is. Of a tensor, torch.export knows the type and the shape but not the values."""
    value = operand.meta.get("val") if isinstance(operand, Node) else operand
    if isinstance(value, torch.Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor"
    return str(value)
