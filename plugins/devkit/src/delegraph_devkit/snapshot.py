"""Record the state of an exported program in plain values, to detect changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .programs import Exported

Snapshot = dict[str, Any]
"""A part of a program, in words -> its state."""


def take_snapshot(exported: Exported | None) -> Snapshot:
    """Return the state of all parts of a program and its inputs."""
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
            flat = tensor.detach().contiguous().reshape(-1)
            data = flat.view(torch.uint8).numpy().tobytes()
            state[f"the values of {name}"] = (tensor.dtype, tuple(tensor.shape), data)
            state[f"the version of {name}"] = (tensor._version, tensor.data_ptr())
    return state


def _plain(value: Any) -> Any:
    """Return a description that differs after a change of the value or its elements."""
    if isinstance(value, torch.Tensor):
        return id(value), value.dtype, str(value.shape), str(value.stride())
    if isinstance(value, Mapping):
        return tuple((str(k), _plain(v)) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return type(value), tuple(_plain(v) for v in value)
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    return id(value)


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """Return the parts that changed."""
    return [
        part
        for part in dict.fromkeys([*before, *after])
        if before.get(part) != after.get(part)
    ]
