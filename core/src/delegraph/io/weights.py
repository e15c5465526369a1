"""A tensor of the model as plugins may use it: its bytes, why it has none, and whether it was written."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

__all__ = ["State", "is_written", "memory_of", "state_of", "why_no_bytes"]

_PLAIN: Any = torch.Tensor.__torch_dispatch__
_string_at = ctypes.string_at
_SAMPLED = 32
"""How many bytes at each end of a tensor ``state_of`` looks at."""
_PIECE = 1 << 20
"""How many bytes of a tensor are brought into C order at a time, if its memory has another order."""


def why_no_bytes(tensor: torch.Tensor) -> str | None:
    """Why the elements of ``tensor`` are not in a single memory that can be read; None if they are.

    Wrapper subclasses hold other tensors, or nothing, in place of elements; the reason names their class. A subclass
    that only adds Python behaviour has elements like any tensor.
    """
    kind = type(tensor)
    if kind.__torch_dispatch__ is not _PLAIN:
        return f"it is a {kind.__name__}, a tensor subclass that keeps its elements in a way of its own"
    if tensor.is_meta:
        return "it is on the meta device and has no elements"
    if tensor.layout is not torch.strided:
        return f"it has the layout {tensor.layout}"
    return None


class State(NamedTuple):
    """The state of a tensor: how often torch saw it written, its shape, and its memory with the bytes at both ends."""

    version: int | None
    shape: torch.Size
    place: int = 0
    size: int = 0
    first: bytes = b""
    last: bytes = b""


def state_of(tensor: torch.Tensor) -> State:
    """Everything that changes when ``tensor`` is written; costs neither a copy nor a hash.

    torch counts the writes to a tensor in ``_version``. But ``tensor.data`` is the same memory with a count of its own,
    so a write through it shows only in its effect: another shape, or other bytes at either end. A tensor that was not
    written is never blamed, and rewriting a whole tensor is always seen; the conformance kit compares all bytes.
    """
    version = None if tensor.is_inference() else tensor._version
    if not tensor.is_cpu or tensor.numel() == 0 or why_no_bytes(tensor) is not None:
        return State(version, tensor.shape)
    place, size = tensor.data_ptr(), tensor.nbytes if tensor.is_contiguous() else tensor.itemsize
    ends = min(size, _SAMPLED)
    return State(version, tensor.shape, place, size, _string_at(place, ends), _string_at(place + size - ends, ends))


def is_written(tensor: torch.Tensor, before: State) -> bool:
    """Whether ``tensor`` was written since it had the state ``before``."""
    version, shape, place, size, first, last = before
    if (version is not None and tensor._version != version) or tensor.shape != shape:
        return True
    if not size or tensor.data_ptr() != place:  # memory that moved may hold the same elements
        return state_of(tensor)[4:] != before[4:]
    ends = len(first)
    return _string_at(place, ends) != first or _string_at(place + size - ends, ends) != last


def memory_of(tensor: torch.Tensor) -> Iterator[memoryview]:
    """The elements of ``tensor`` in C order: its own memory if that is contiguous, otherwise copies of pieces of it."""
    tensor = tensor.detach().reshape(1) if tensor.dim() == 0 else tensor.detach()
    plain = tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
    rows = max(1, len(tensor) if plain else _PIECE * len(tensor) // max(1, tensor.nbytes))
    for piece in torch.split(tensor, rows):
        elements = piece.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        # one element is contiguous whatever its stride, but can be seen as bytes at stride 1 only
        bytes_of: Any = elements.as_strided(elements.shape, (1,)).view(torch.uint8).numpy()
        yield memoryview(bytes_of)
