"""Tensors that share memory: a lowered program is functional, and so a write reaches no other input or buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from ..errors import InputError


def expect_written_apart(inputs: Sequence[Node], flat: Sequence[Any], written: Sequence[int]) -> None:
    """Raise InputError if an input that the program writes shares memory with another one that it uses.

    In eager PyTorch the other would change as well. ``written``: positions in ``flat``.
    """
    tensors = {k: value for k, value in enumerate(flat) if isinstance(value, torch.Tensor)}
    for k in written:
        for other, value in tensors.items():
            if other != k and (inputs[other].users or other in written) and share_memory(tensors[k], value):
                ours, theirs = inputs[k].name, inputs[other].name
                text = f"inputs {ours} and {theirs} share memory, and the program writes {ours}"
                raise InputError("input-invalid", text, hint=f"give {theirs} memory of its own: clone()")


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether an element of one is an element, or a part of one, of the other."""
    if torch.strided not in (a.layout, b.layout) or not a.numel() or not b.numel():
        return False
    if a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    (first, end), (start, last) = _bytes_of(a), _bytes_of(b)
    if end <= start or last <= first:
        return False
    if a.element_size() != b.element_size() or (start - first) % a.element_size():
        return True
    origin = min(first, start)
    taken = torch.zeros((max(end, last) - origin) // a.element_size(), dtype=torch.bool)
    taken.as_strided(a.shape, a.stride(), (first - origin) // a.element_size()).fill_(True)
    return bool(taken.as_strided(b.shape, b.stride(), (start - origin) // a.element_size()).any())


def _bytes_of(tensor: torch.Tensor) -> tuple[int, int]:
    """(first, end) of the bytes in the storage between which the elements lie."""
    first = int(tensor.storage_offset())
    steps = ((int(size) - 1) * int(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first * tensor.element_size(), (first + 1 + sum(steps)) * tensor.element_size()
