"""Access to the bytes of a model's tensors, and a check whether a tensor was written in the meantime."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

__all__ = ["State", "is_written", "memory_of", "state_of", "why_no_bytes"]

_PLAIN: Any = torch.Tensor.__torch_dispatch__
_string_at = ctypes.string_at
_SAMPLED = 32
"""The number of bytes at each end of a tensor that ``state_of`` records."""
_PIECE = 1 << 20
"""The most bytes that ``memory_of`` copies at a time, for a tensor that is not in C order."""


def why_no_bytes(tensor: torch.Tensor) -> str | None:
    """Why the elements of ``tensor`` cannot be read as one block of memory; None if they can.

    Wrapper subclasses hold other tensors, or nothing, in place of elements; the reason names their class. Subclasses
    without a ``__torch_dispatch__`` of their own have elements like any tensor.
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
    """What ``state_of`` records of a tensor, to see later whether it was written.

    ``version``: torch's count of writes; None for inference tensors, which have no count. ``place``: address of the
    first element. ``size``: the number of bytes that can be compared; 0 if none can. ``first`` and ``last``: the bytes
    at both ends of these.
    """

    version: int | None
    shape: torch.Size
    place: int = 0
    size: int = 0
    first: bytes = b""
    last: bytes = b""


def state_of(tensor: torch.Tensor) -> State:
    """The state of ``tensor``, for ``is_written``. Reads a few bytes only: it neither copies nor hashes the tensor.

    torch counts the writes to a tensor in ``_version``. ``tensor.data`` shares the memory but has a count of its own,
    so a write through it only shows as another shape, or as other bytes at either end. Such a write is missed if
    it changes neither; the conformance kit compares all bytes.
    """
    version = None if tensor.is_inference() else tensor._version
    if not tensor.is_cpu or tensor.numel() == 0 or why_no_bytes(tensor) is not None:
        return State(version, tensor.shape)
    # the elements of other tensors do not lie side by side: only the first can be compared
    place, size = tensor.data_ptr(), tensor.nbytes if tensor.is_contiguous() else tensor.itemsize
    sampled = min(size, _SAMPLED)
    first, last = _string_at(place, sampled), _string_at(place + size - sampled, sampled)
    return State(version, tensor.shape, place, size, first, last)


def is_written(tensor: torch.Tensor, before: State) -> bool:
    """Whether ``tensor`` was written since ``state_of`` returned ``before``, as far as a ``State`` can tell.

    It was if torch's count of writes, the shape, or the bytes at either end are different now.
    """
    version, shape, place, size, first, last = before
    if (version is not None and tensor._version != version) or tensor.shape != shape:
        return True
    if not size or tensor.data_ptr() != place:  # the elements may have moved without a change
        return state_of(tensor)[4:] != before[4:]  # only the bytes at both ends
    sampled = len(first)
    return _string_at(place, sampled) != first or _string_at(place + size - sampled, sampled) != last


def memory_of(tensor: torch.Tensor) -> Iterator[memoryview]:
    """The bytes of ``tensor`` in C order: one view of its memory if that is possible, otherwise copied pieces.

    A view is possible for a contiguous tensor on the CPU. A copied piece is some rows of at most _PIECE bytes together,
    or a single row.
    """
    tensor = tensor.detach().reshape(1) if tensor.dim() == 0 else tensor.detach()
    in_order = tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
    rows_of_a_piece = len(tensor) if in_order else _PIECE * len(tensor) // max(1, tensor.nbytes)
    for piece in torch.split(tensor, max(1, rows_of_a_piece)):
        elements = piece.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        # one element is contiguous whatever its stride, but can be seen as bytes at stride 1 only
        bytes_of: Any = elements.as_strided(elements.shape, (1,)).view(torch.uint8).numpy()
        yield memoryview(bytes_of)
