"""Finds tensors that share memory.

A lowered program is functional, so its writes reach no other input or buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node

from .errors import InputError

Key = TypeVar("Key")


def expect_written_apart(
    inputs: Sequence[Node], flat: Sequence[Any], written: Sequence[int]
) -> None:
    """Raise InputError if an input that the program writes shares memory with another
    one that it uses.

    In eager PyTorch the other input would change as well. ``flat``: the values of
    ``inputs``. ``written``: the positions of inputs that the program writes.
    """
    tensors = {
        k: value for k, value in enumerate(flat) if isinstance(value, torch.Tensor)
    }
    for k in written:
        for other, value in tensors.items():
            if (
                other != k
                and (inputs[other].users or other in written)
                and share_memory(tensors[k], value)
            ):
                written_name = inputs[k].name
                other_name = inputs[other].name
                text = (
                    f"inputs {written_name} and {other_name} share memory, and the"
                    f" program writes {written_name}"
                )
                raise InputError(
                    "input-invalid",
                    text,
                    hint=f"give {other_name} memory of its own: clone()",
                )


def overlapping(tensors: Mapping[Key, torch.Tensor]) -> Iterator[tuple[Key, Key]]:
    """Yield the pairs of keys of tensors with overlapping address ranges.

    Other tensors cannot share memory.
    """
    spans: dict[Key, tuple[int, int]] = {}
    for key, tensor in tensors.items():
        span = addresses(tensor)
        if span is not None:
            spans[key] = span
    # In order of first addresses, an earlier tensor overlaps the present one if it ends
    # after the present one begins.
    earlier: list[Key] = []
    for key in sorted(spans, key=spans.__getitem__):
        first, _ = spans[key]
        earlier = [other for other in earlier if spans[other][1] > first]
        yield from ((other, key) for other in earlier)
        earlier.append(key)


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether an element of ``a`` and an element of ``b`` overlap in memory.

    Also True, without a closer look, if their elements differ in size or alignment and
    their address ranges overlap. Comparing storages is not enough: two storages made of
    one numpy array are two views of its memory.
    """
    span_a = addresses(a)
    span_b = addresses(b)
    if span_a is None or span_b is None or a.device != b.device:
        return False
    first_a, end_a = span_a
    first_b, end_b = span_b
    if end_a <= first_b or end_b <= first_a:
        return False
    size = a.element_size()
    if size != b.element_size() or (first_b - first_a) % size:
        return True  # elements overlap in part, or may do so
    origin = min(first_a, first_b)
    # mark the elements of ``a`` in an array that models the memory, and look whether
    # ``b`` has one of them
    occupied = torch.zeros((max(end_a, end_b) - origin) // size, dtype=torch.bool)
    occupied.as_strided(a.shape, a.stride(), (first_a - origin) // size).fill_(True)
    return bool(
        occupied.as_strided(b.shape, b.stride(), (first_b - origin) // size).any()
    )


def addresses(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Return the addresses (first, end) between which a tensor's elements lie.

    None for a tensor without memory of its own: sparse, fake, meta or empty.
    """
    if (
        tensor.layout is not torch.strided
        or isinstance(tensor, FakeTensor)
        or not tensor.numel()
    ):
        return None
    memory = tensor.untyped_storage().data_ptr()
    if not memory:  # on the device "meta", or a wrapper around other tensors
        return None
    size = tensor.element_size()
    first = memory + int(tensor.storage_offset()) * size
    steps = (
        (int(n) - 1) * int(stride)
        for n, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return first, first + (1 + sum(steps)) * size
