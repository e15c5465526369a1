"""Reads the bytes of a model's tensors, and checks whether a tensor was written."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import torch

__all__ = ["State", "is_written", "memory_of", "state_of", "why_no_bytes"]

_PLAIN: Any = torch.Tensor.__torch_dispatch__
_string_at = ctypes.string_at
_SAMPLED = 32
"""The number of bytes at each end of a tensor that ``state_of`` records."""
_ROW = 8191
"""The number of words of 8 bytes that ``fingerprint`` sums at a time."""
_PIECE = 1 << 20
"""The most bytes that ``memory_of`` copies at a time, if a tensor is not in C order."""


def why_no_bytes(tensor: torch.Tensor) -> str | None:
    """Return why the elements of ``tensor`` cannot be read from its memory, or None.

    Wrapper subclasses, which have their own ``__torch_dispatch__``, hold other tensors
    or nothing in place of elements. All other subclasses have elements like any tensor.
    """
    kind = type(tensor)
    if kind.__torch_dispatch__ is not _PLAIN:
        return (
            f"the tensor is a {kind.__name__}, a tensor subclass that keeps its elements in a"
            " way of its own"
        )
    if tensor.is_meta:
        return "the tensor is on the meta device and has no elements"
    if tensor.layout is not torch.strided:
        return f"the tensor has the layout {tensor.layout}, not torch.strided"
    return None


def is_dense(value: Any) -> bool:
    """Return whether ``value`` is a plain tensor with strides and memory.

    False for subclasses other than parameters, and for sparse, quantized and meta
    tensors.
    """
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return False
    has_memory = value.device.type != "meta" and not value.is_quantized
    return has_memory and value.layout is torch.strided


@cache
def _weights() -> np.ndarray[Any, Any]:
    """Return the weights of ``fingerprint``: random odd numbers, always the same."""
    digests = [sha256(b"%d" % k).digest() for k in range(_ROW // 4 + 1)]
    numbers = np.frombuffer(b"".join(digests), "<i8")[:_ROW]
    return numbers | 1


def fingerprint(tensor: torch.Tensor) -> str:
    """Return a digest of dtype, shape and elements of ``tensor``, as text.

    It is equal in all processes. It does not resist deliberate collisions: compare the
    tensors if their fingerprints are equal.
    """
    # SHA-256 of all bytes takes six times as long, which is a third of lowering BERT
    # without its compiler. So each row of 8-byte words is summed with random weights,
    # modulo 2**64. Only the sums and the bytes after the last row are digested. A row
    # has an odd number of words: in the sum of an even number, the highest bits of all
    # words could cancel out, as when all imaginary parts change their signs.
    digest = sha256(f"{tensor.dtype} {list(tensor.shape)} ".encode())
    for piece in memory_of(tensor.contiguous()) if tensor.numel() else ():
        end = len(piece) - len(piece) % (8 * _ROW)
        rows = np.frombuffer(piece[:end], "<i8").reshape(-1, _ROW)
        digest.update(np.einsum("ij,j->i", rows, _weights()))
        digest.update(piece[end:])
    return digest.hexdigest()


class State(NamedTuple):
    """A record of a tensor by ``state_of``, to detect later writes.

    ``version``: torch's count of writes; None for inference tensors, which have no
    count. ``place``: address of the first element. ``size``: the bytes of the elements;
    0 if none can be read. ``first`` and ``last``: the first and the last of these
    bytes.
    """

    version: int | None
    shape: torch.Size
    place: int = 0
    size: int = 0
    first: bytes = b""
    last: bytes = b""


def state_of(tensor: torch.Tensor) -> State:
    """Return the state of ``tensor``, for ``is_written``, from a few of its bytes.

    torch counts the writes to a tensor in ``_version``. ``tensor.data`` shares the
    memory but has a count of its own. So a write through it is detected only if the
    shape or the bytes at either end change. The conformance kit compares all bytes.
    """
    version = None if tensor.is_inference() else tensor._version
    if not tensor.is_cpu or tensor.numel() == 0 or why_no_bytes(tensor) is not None:
        return State(version, tensor.shape)
    # if the elements do not lie side by side, only the first one is compared
    place = tensor.data_ptr()
    size = tensor.nbytes if tensor.is_contiguous() else tensor.itemsize
    sampled = min(size, _SAMPLED)
    first = _string_at(place, sampled)
    last = _string_at(place + size - sampled, sampled)
    return State(version, tensor.shape, place, size, first, last)


def is_written(tensor: torch.Tensor, before: State) -> bool:
    """Return whether ``tensor`` was written since ``state_of`` returned ``before``.

    It was if torch's count of writes, the shape, or the bytes at either end are
    different now. Some writes are not detected (``state_of``).
    """
    version, shape, place, size, first, last = before
    if (version is not None and tensor._version != version) or tensor.shape != shape:
        return True
    # the elements may have moved to another place without a change
    if not size or tensor.data_ptr() != place:
        now = state_of(tensor)
        return (now.first, now.last) != (first, last)
    # read the bytes here, and not by ``state_of``, which takes longer
    sampled = len(first)
    return (
        _string_at(place, sampled) != first
        or _string_at(place + size - sampled, sampled) != last
    )


def memory_of(tensor: torch.Tensor) -> Iterator[memoryview]:
    """Yield the bytes of ``tensor`` in C order.

    For a contiguous tensor on the CPU, this is a single view of its memory. Other
    tensors are copied in pieces: rows of at most _PIECE bytes together, or one row.
    """
    tensor = tensor.detach().reshape(1) if tensor.dim() == 0 else tensor.detach()
    in_order = (
        tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )
    rows_of_a_piece = (
        len(tensor) if in_order else _PIECE * len(tensor) // max(1, tensor.nbytes)
    )
    for piece in torch.split(tensor, max(1, rows_of_a_piece)):
        elements = piece.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        # a single element may have any stride, but a view as bytes needs stride 1
        packed = elements.as_strided(elements.shape, (1,))
        as_bytes: Any = packed.view(torch.uint8).numpy()
        yield memoryview(as_bytes)
