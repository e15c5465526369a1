"""The state of an exported program in plain values, to see whether somebody changed it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .programs import Exported

Snapshot = dict[str, Any]
"""What can be changed -> its state."""


def take_snapshot(exported: Exported | None) -> Snapshot:
    """The state of everything in a program and its inputs, by name."""
    if exported is None:
        return {}
    program, inputs = exported
    state: Snapshot = {
        "the signature": repr(program.graph_signature),
        "the number of nodes": len(program.graph.nodes),
    }
    for node in program.graph.nodes:
        state[f"the call of {node.name}"] = (
            node.op,
            str(node.target),
            repr(node.args),
            repr(node.kwargs),
        )
        for key, value in node.meta.items():
            state[f"meta[{key!r}] of {node.name}"] = _plain(value)
    tensors = {**program.state_dict, **program.constants}
    tensors |= {f"input {k}": v for k, v in enumerate(pytree.tree_leaves(inputs))}
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor):
            data = (
                tensor.detach()
                .contiguous()
                .reshape(-1)
                .view(torch.uint8)
                .numpy()
                .tobytes()
            )
            state[f"the values of {name}"] = (tensor.dtype, tuple(tensor.shape), data)
            state[f"the version of {name}"] = (tensor._version, tensor.data_ptr())
    return state


def _plain(value: Any) -> Any:
    """A description that changes when the value, or what it holds, is changed."""
    if isinstance(value, torch.Tensor):
        return id(value), value.dtype, str(value.shape), str(value.stride())
    if isinstance(value, Mapping):
        return tuple((str(k), _plain(v)) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return type(value), tuple(_plain(v) for v in value)
    return (
        value if isinstance(value, (str, int, float, bool, type(None))) else id(value)
    )


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """The names of what changed."""
    return [
        what
        for what in dict.fromkeys([*before, *after])
        if before.get(what) != after.get(what)
    ]
