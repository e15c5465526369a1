"""Blobs: byte strings of backends that are only put together when a file is written."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, runtime_checkable

from ..errors import ContractViolation

if TYPE_CHECKING:
    import torch

__all__ = ["Blob", "TensorBlob", "equal", "head", "join", "stream"]


@runtime_checkable
class Blob(Protocol):
    """Bytes that are only put together when they are written to a file. A backend
    returns a Blob, and not ``bytes``, if most of the bytes are weights.

    A Blob reads the weights from the memory of the model each time it is written, so it
    needs no copy of the weights. The model must not change between lowering and
    writing.
    """

    def __len__(self) -> int:
        """Return the number of bytes that ``write_to`` writes."""

    def write_to(self, file: BinaryIO) -> None:
        """Append all bytes to ``file``. Raises ContractViolation if the model has
        changed.
        """


class TensorBlob:
    """A Blob of the elements of a tensor, in C order. Do not change the tensor before
    the blob is written to a file.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        """Keep a reference to ``tensor``, not a copy.

        Also keep its state, by which ``write_to`` detects later changes of the tensor.
        """
        # imported late, so that blobs of bytes need no torch
        from delegraph_programs.tensor_bytes import state_of

        self._tensor = tensor
        self._state = state_of(tensor)

    def __len__(self) -> int:
        return self._tensor.nbytes

    def write_to(self, file: BinaryIO) -> None:
        """Append the elements to ``file``. Raises ContractViolation if the tensor was
        changed after the blob was made.
        """
        from delegraph_programs import memory_of
        from delegraph_programs.tensor_bytes import is_written

        if is_written(self._tensor, self._state):
            raise ContractViolation(
                "contract-violation",
                f"a tensor of shape {list(self._tensor.shape)} was changed after it was"
                " added as named data",
                hint="lower the model again",
            )
        for piece in memory_of(self._tensor):
            file.write(piece)

    def __bytes__(self) -> bytes:
        return join(self)

    def __eq__(self, other: object) -> bool:
        """Return whether ``other``, bytes or a blob, has the same bytes."""
        if isinstance(other, (bytes, Blob)):
            return equal(self, other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # the tensor may change

    def memory_key(self) -> tuple[Any, ...]:
        """Return a key of the memory and the layout of the elements.

        If two blobs have equal keys, their bytes are equal, and ``equal`` does not read
        them.
        """
        # ``_state`` is included because the tensor may be changed between the creation
        # of two blobs. Then ``write_to`` of the first blob raises an error.
        tensor = self._tensor
        return (
            self._state,
            tensor.data_ptr(),
            tensor.dtype,
            tensor.shape,
            tensor.stride(),
        )


def is_blob(data: Any) -> bool:
    """Return whether ``data`` is a Blob.

    ``isinstance`` alone would also accept a class of blobs, which has the same methods
    as its instances.
    """
    return isinstance(data, Blob) and not isinstance(data, type)


def join(data: bytes | Blob) -> bytes:
    """Return ``data`` as one ``bytes`` object."""
    if isinstance(data, bytes):
        return data
    buffer = io.BytesIO()
    data.write_to(buffer)
    return buffer.getvalue()  # shares the buffer's memory, so this is no second copy


def head(data: bytes | Blob, size: int) -> bytes:
    """Return the first ``size`` bytes of ``data``.

    A Blob has to write all its bytes for this. Raises ContractViolation if it writes
    more or fewer bytes than its ``len()``.
    """
    if isinstance(data, bytes):
        return data[:size]
    first = bytearray()
    written = 0

    def take(piece: memoryview) -> None:
        """Append ``piece`` to ``first`` until that has ``size`` bytes, and count all
        bytes.
        """
        nonlocal written
        first.extend(piece[: size - len(first)])
        written += piece.nbytes

    stream(data, take)
    if written != len(data):
        raise ContractViolation(
            "contract-violation",
            f"{type(data).__name__}.write_to wrote {written} bytes, and its len() is"
            f" {len(data)}",
        )
    return bytes(first)


def stream(data: bytes | Blob, take: Callable[[memoryview], None]) -> None:
    """Call ``take`` with all bytes of ``data``, piece by piece.

    Each piece is valid only during the call that gets it.
    """
    if isinstance(data, bytes):
        take(memoryview(data))
    else:
        data.write_to(_Sink(take))  # type: ignore[arg-type]


def equal(ours: bytes | Blob, theirs: bytes | Blob) -> bool:
    """Return whether ``ours`` and ``theirs`` have the same bytes.

    Blobs are compared by the digests of their bytes, so that no blob is joined. No blob
    is read if both are one object, if their lengths differ, or if both are TensorBlobs
    with equal ``memory_key()``.
    """
    if isinstance(ours, bytes) and isinstance(theirs, bytes):
        return ours == theirs
    if ours is theirs:
        return True
    if len(ours) != len(theirs):
        return False
    if (
        isinstance(ours, TensorBlob)
        and isinstance(theirs, TensorBlob)
        and ours.memory_key() == theirs.memory_key()
    ):
        return True
    return digest(ours) == digest(theirs)


def digest(data: bytes | Blob) -> bytes:
    """Return the SHA-256 of the bytes."""
    content = hashlib.sha256()
    stream(data, content.update)
    return content.digest()


class _Sink(io.RawIOBase):
    """A writable file that passes all bytes to ``take`` and stores nothing."""

    def __init__(self, take: Callable[[memoryview], None]) -> None:
        self._take = take

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Pass the bytes of ``data``, an object with a buffer, to ``take``, and return
        their number. If there are none, ``take`` is not called.
        """
        view = memoryview(data)
        # without bytes, there is nothing to pass, and ``cast`` raises an error
        if view.nbytes:
            self._take(view.cast("B"))
        return view.nbytes
