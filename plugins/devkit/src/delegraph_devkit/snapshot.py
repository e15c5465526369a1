"""The state of an exported program in plain values, to see whether somebody changed it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .programs import Exported

Account = dict[str, Any]
"""What can be changed -> its state."""


def account(made: Exported | None) -> Account:
    """The state of everything in a program and its inputs, by name."""
    if made is None:
        return {}
    program, inputs = made
    found: Account = {"the signature": repr(program.graph_signature), "the number of nodes": 0}
    for node in program.graph.nodes:
        found["the number of nodes"] += 1
        found[f"the call of {node.name}"] = (node.op, str(node.target), repr(node.args), repr(node.kwargs))
        for key, value in node.meta.items():
            found[f"meta[{key!r}] of {node.name}"] = _plain(value)
    tensors = {**program.state_dict, **program.constants}
    tensors |= {f"input {k}": v for k, v in enumerate(pytree.tree_leaves(inputs))}
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor):
            found[f"the values of {name}"] = _values(tensor)
            found[f"the version of {name}"] = (tensor._version, tensor.data_ptr())
    return found


def _values(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (
        tensor.dtype,
        tuple(tensor.shape),
        tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(),
    )


def _plain(value: Any) -> Any:
    """A description that changes when the value, or what it holds, is changed."""
    if isinstance(value, torch.Tensor):
        return id(value), value.dtype, str(value.shape), str(value.stride())
    if isinstance(value, Mapping):
        return tuple((str(k), _plain(v)) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return type(value), tuple(_plain(v) for v in value)
    return value if isinstance(value, (str, int, float, bool, type(None))) else id(value)


def differences(before: Account, after: Account) -> list[str]:
    """The names of what changed."""
    return [what for what in dict.fromkeys([*before, *after]) if before.get(what) != after.get(what)]
