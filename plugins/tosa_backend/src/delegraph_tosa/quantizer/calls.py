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
    """Return ``conv2d`` of ``aten.conv2d.default``; "" for another target."""
    if not isinstance(target, torch._ops.OpOverload):
        return ""
    _, _, name = target._schema.name.partition("::")
    return name


def functional(target: Any) -> Any:
    """Return ``relu.default`` of ``relu_.default``.

    A program is lowered without writes.
    """
    name = packet(target)
    if not name.endswith("_") or name.startswith("_"):
        return target
    functional_packet = getattr(aten, name.removesuffix("_"), None)
    return getattr(functional_packet, target._overloadname, target)


def arguments(node: Node) -> dict[str, Any]:
    """Return a call's arguments by the schema's names."""
    assert isinstance(node.target, torch._ops.OpOverload)
    names = [argument.name for argument in node.target._schema.arguments]
    positional = dict(zip(names, node.args, strict=False))
    return positional | node.kwargs


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
