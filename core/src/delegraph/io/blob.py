"""Bytes that are not joined yet: blobs and named data of backends may be such objects instead of ``bytes``."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, runtime_checkable

from ..errors import ContractViolation

if TYPE_CHECKING:
    import torch

__all__ = ["Blob", "TensorBlob", "equal", "head", "is_blob", "join", "stream"]


@runtime_checkable
class Blob(Protocol):
    """Bytes that are not joined yet. A backend whose blob is mostly weights returns one instead of ``bytes``.

    ``write_to`` appends all bytes to a file; ``len()`` is known before. Weights are read from their own memory, so
    nothing of the model may change in between: ``write_to`` raises ContractViolation if something did.
    """

    def __len__(self) -> int: ...

    def write_to(self, file: BinaryIO) -> None: ...


class TensorBlob:
    """The elements of a tensor in C order, read from its memory each time they are written."""

    def __init__(self, tensor: torch.Tensor) -> None:
        from .weights import state_of  # imported late, so that blobs of bytes need no torch

        self._tensor, self._state = tensor, state_of(tensor)

    def __len__(self) -> int:
        return self._tensor.nbytes

    def write_to(self, file: BinaryIO) -> None:
        """Append the elements. Raises ContractViolation if the tensor was written since the blob was made."""
        from .weights import is_written, memory_of

        if is_written(self._tensor, self._state):
            text = f"a tensor of shape {list(self._tensor.shape)} was changed after it was added as named data"
            raise ContractViolation("contract-violation", text, hint="lower the model again")
        for piece in memory_of(self._tensor):
            file.write(piece)

    def __bytes__(self) -> bytes:
        return join(self)

    def __eq__(self, other: object) -> bool:
        """Whether ``other``, bytes or a blob, has the same bytes."""
        return equal(self, other) if isinstance(other, (bytes, Blob)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # the tensor may change

    def place(self) -> tuple[Any, ...]:
        """A key that is equal for two blobs that read the same elements of the same memory.

        These need not be compared.
        """
        tensor = self._tensor
        return self._state, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def is_blob(data: Any) -> bool:
    """Whether ``data`` is a Blob. A class is none, although it has the same attributes."""
    return isinstance(data, Blob) and not isinstance(data, type)


def join(data: bytes | Blob) -> bytes:
    """All bytes of ``data``, written only once: ``getvalue`` shares the buffer."""
    if isinstance(data, bytes):
        return data
    buffer = io.BytesIO()
    data.write_to(buffer)
    return buffer.getvalue()


def head(data: bytes | Blob, size: int) -> bytes:
    """The first ``size`` bytes; a Blob is written completely for that.

    ContractViolation if it has not ``len`` bytes.
    """
    if isinstance(data, bytes):
        return data[:size]
    first, written = bytearray(), 0

    def take(piece: memoryview) -> None:
        """Keep the piece as far as it belongs to the first bytes, and count all."""
        nonlocal written
        first.extend(piece[: size - len(first)])
        written += piece.nbytes

    stream(data, take)
    if written != len(data):
        text = f"{type(data).__name__}.write_to wrote {written} bytes, and its len() is {len(data)}"
        raise ContractViolation("contract-violation", text)
    return bytes(first)


def stream(data: bytes | Blob, take: Callable[[memoryview], None]) -> None:
    """Hand all bytes of ``data`` to ``take``, piece by piece; a piece is what it is for the length of the call only."""
    if isinstance(data, bytes):
        take(memoryview(data))
    else:
        data.write_to(_Sink(take))  # type: ignore[arg-type]


def equal(ours: bytes | Blob, theirs: bytes | Blob) -> bool:
    """Whether both have the same bytes. Nothing is joined, and two blobs of the same memory are not read."""
    if isinstance(ours, bytes) and isinstance(theirs, bytes):
        return ours == theirs
    if ours is theirs or len(ours) != len(theirs):
        return ours is theirs
    if isinstance(ours, TensorBlob) and isinstance(theirs, TensorBlob) and ours.place() == theirs.place():
        return True
    return _digest(ours) == _digest(theirs)


def _digest(data: bytes | Blob) -> bytes:
    """The SHA-256 of the bytes."""
    digest = hashlib.sha256(data if isinstance(data, bytes) else b"")
    if not isinstance(data, bytes):
        stream(data, digest.update)
    return digest.digest()


class _Sink(io.RawIOBase):
    """A file that passes on what is written to it, and keeps nothing."""

    def __init__(self, take: Callable[[memoryview], None]) -> None:
        self._take = take

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data)
        if view.nbytes:  # an empty one cannot be cast
            self._take(view.cast("B"))
        return view.nbytes
