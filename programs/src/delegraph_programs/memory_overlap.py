"""Finds tensors that share memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node

from .errors import InputError

Key = TypeVar("Key")


def expect_written_apart(
    inputs: Sequence[Node], flat: Sequence[Any], written: Sequence[int]
) -> None:
    """Raise InputError if a written input shares memory with another used input.

    In eager PyTorch, the write changes the other input as well. In a lowered program,
    which is functional, it does not. ``flat``: the values of ``inputs``. ``written``:
    the positions of inputs that the program writes.
    """
    for k in written:
        for other, value in enumerate(flat):
            if other == k or not isinstance(value, torch.Tensor):
                continue
            is_used = inputs[other].users or other in written
            if is_used and share_memory(flat[k], value):
                name = inputs[k].name
                other_name = inputs[other].name
                text = (
                    f"inputs {name} and {other_name} share memory, and the program"
                    f" writes {name}"
                )
                hint = f"give {other_name} memory of its own: clone()"
                raise InputError("input-invalid", text, hint=hint)


def overlapping(tensors: Mapping[Key, torch.Tensor]) -> Iterator[tuple[Key, Key]]:
    """Yield the pairs of keys of tensors with overlapping address ranges.

    They may share memory; other tensors cannot.
    """
    spans: dict[Key, tuple[int, int]] = {}
    for key, tensor in tensors.items():
        span = addresses(tensor)
        if span is not None:
            spans[key] = span
    # Walk in order of first addresses. An earlier tensor overlaps the present one if it
    # ends after the present one begins.
    earlier: list[Key] = []
    for key in sorted(spans, key=spans.__getitem__):
        first, _ = spans[key]
        earlier = [other for other in earlier if spans[other][1] > first]
        yield from ((other, key) for other in earlier)
        earlier.append(key)


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether an element of ``a`` and an element of ``b`` overlap in memory.

    If their address ranges overlap and their elements differ in size or alignment, the
    result is True without a closer look. Comparing storages is not enough: two storages
    made of one numpy array are two views of its memory.
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
        return True
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
    return first, first + extent(tensor.shape, tensor.stride()) * size


def extent(shape: Iterable[int], strides: Iterable[int]) -> int:
    """Return how many places in memory a tensor with elements spans, gaps included.

    For shape (2, 3) and strides (8, 1), the last element has the place 10: 11 places.
    """
    steps = zip(shape, strides, strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps)
