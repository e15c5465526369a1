"""Properties of a call for the quantizer: operator, arguments, float result."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

aten = torch.ops.aten


def is_float(node: Node) -> bool:
    """Return whether its value is a tensor of float32."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype is torch.float32


def packet(target: Any) -> str:
    """Return ``conv2d`` of ``aten.conv2d.default``."""
    return (
        target._schema.name.partition("::")[2]
        if isinstance(target, torch._ops.OpOverload)
        else ""
    )


def functional(target: Any) -> Any:
    """``relu_.default`` -> ``relu.default``: a program is lowered without writes."""
    name = packet(target)
    if name.endswith("_") and not name.startswith("_"):
        return getattr(getattr(aten, name[:-1], None), target._overloadname, target)
    return target


def arguments(node: Node) -> dict[str, Any]:
    """Return a call's arguments by the schema's names."""
    assert isinstance(node.target, torch._ops.OpOverload)
    names = [a.name for a in node.target._schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def is_constant(node: Node) -> bool:
    """Return whether a tensor is made of parameters and buffers alone."""
    pending = [node]
    seen = {node}
    while pending:
        made = pending.pop()
        if made.op == "placeholder":
            return False
        pending += [n for n in made.all_input_nodes if n not in seen]
        seen.update(made.all_input_nodes)
    return True
