"""Write the constants of a form as rows and memories, and make tensors from them.

A *memory* is a range of bytes that contains one tensor, or several that overlap.
Tensors that shared memory share it again after reading. Two tensors with equal content
at two addresses stay two: backends distinguish constants by address.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from delegraph.errors import FormatError
from delegraph_programs import memory_of, why_no_bytes
from delegraph_programs.memory_overlap import addresses

from .arguments import DTYPES, NAMES, c_strides
from .sizes import NoForm, at

INLINE = 1 << 20
"""Memories of this many bytes and more are not part of the bytes of a form."""


@dataclass
class Memory:
    """The bytes of one or several constants of a program, by reference.

    ``size``: the number of bytes. ``address``: where they begin. It is None if the
    memory belongs to one tensor whose elements must be copied into C order.
    ``tensors``: the constants that consist of these bytes.
    """

    size: int
    address: int | None
    tensors: list[torch.Tensor]

    def pieces(self) -> Iterator[memoryview]:
        """Yield the bytes; only elements that are not in C order are copied."""
        if self.address is not None:
            characters = (ctypes.c_char * self.size).from_address(self.address)
            yield memoryview(characters).cast("B")
        elif self.size:
            yield from memory_of(self.tensors[0])

    @cached_property
    def digest(self) -> bytes:
        """Return the SHA-256 digest of the bytes."""
        digest = hashlib.sha256()
        for piece in self.pieces():
            digest.update(piece)
        return digest.digest()


def written_constants(
    tensors: Sequence[torch.Tensor],
) -> tuple[list[Any], list[Memory]]:
    """Return a row for each tensor, and the memories that contain the tensors.

    Overlapping tensors share a memory. A row has dtype, shape, strides (None in C
    order), the number of the memory, and the offset in it in bytes. The offset is None
    if the memory has only the elements of this tensor, in C order. Raises NoForm for a
    tensor that has no form.
    """
    spans = [_span(tensor) for tensor in tensors]
    memory_of_tensor = _memories_of(tensors, spans)
    # in order of their first use
    memories: list[Memory] = []
    numbers: dict[int, int] = {}
    rows = []
    for tensor, memory, span in zip(tensors, memory_of_tensor, spans, strict=True):
        if id(memory) not in numbers:
            numbers[id(memory)] = len(memories)
            memories.append(memory)
            _remove_gaps(memory)
        rows.append(_row(tensor, memory, numbers[id(memory)], span))
    return rows, memories


def _memories_of(
    tensors: Sequence[torch.Tensor], spans: Sequence[tuple[int, int] | None]
) -> list[Memory]:
    """Return the memory of each tensor; tensors with overlapping spans share one."""
    memory_of_tensor: dict[int, Memory] = {}
    # In the order of addresses, a tensor that begins before the end of the last memory
    # lies in this memory, and may extend it. A tensor without a span gets a memory of
    # its own.
    last = Memory(0, None, [])
    end = 0
    for k in sorted(range(len(tensors)), key=lambda k: spans[k] or (0, 0)):
        tensor = tensors[k]
        span = spans[k]
        if span is None:
            last = Memory(tensor.nbytes, None, [tensor])
        elif span[0] < end:
            end = max(end, span[1])
            last.size = end - (last.address or 0)
            last.tensors.append(tensor)
        else:
            end = span[1]
            last = Memory(end - span[0], span[0], [tensor])
        memory_of_tensor[k] = last
    return [memory_of_tensor[k] for k in range(len(tensors))]


def _remove_gaps(memory: Memory) -> None:
    """Keep only the elements of a tensor that is alone in its memory.

    The gaps between its elements are no content, and may be large.
    """
    if len(memory.tensors) == 1 and memory.size > memory.tensors[0].nbytes:
        memory.size = memory.tensors[0].nbytes
        memory.address = None


def _span(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Return the addresses where the bytes of a tensor begin and end.

    Returns None if it is empty, or if its elements are conjugated or negated lazily.
    Raises NoForm for a tensor without bytes on the CPU, or a dtype without a name.
    """
    why = why_no_bytes(tensor)
    if why is None and not tensor.is_cpu:
        why = f"the tensor is on the device {tensor.device}"
    if why is None and tensor.dtype not in NAMES:
        why = f"its dtype is {tensor.dtype}"
    if why is not None:
        raise NoForm(f"it has a constant that cannot be stored: {why}")
    return None if tensor.is_conj() or tensor.is_neg() else addresses(tensor)


def _row(
    tensor: torch.Tensor, memory: Memory, number: int, span: tuple[int, int] | None
) -> list[Any]:
    """Return the row of ``tensor``, as ``written_constants`` describes it.

    The tensor lies in memory number ``number``, at the addresses ``span``.
    Raises NoForm if it begins inside an element of another tensor.
    """
    shape = list(tensor.shape)
    strides = list(tensor.stride())
    offset = None
    if memory.address is not None and span is not None:
        offset = span[0] - memory.address
    if offset is not None and offset % tensor.element_size():
        raise NoForm(
            "it has a constant that begins inside an element of another constant"
        )
    return [
        NAMES[tensor.dtype],
        shape,
        None if strides == c_strides(shape) else strides,
        number,
        offset,
    ]


class ConstantsRead:
    """Makes tensors from the rows of ``written_constants`` and the bytes of memories.

    Small memories are copied. Large ones are used in place, so their buffers must be
    writable and have no other user: a private mapping, for example. Two memories stay
    separate even if their content is equal.
    """

    def __init__(self, rows: Sequence[Any], buffers: Sequence[memoryview]) -> None:
        """Keep the rows, and the bytes of each memory by its number."""
        self._rows = rows
        self._buffers = buffers
        self._memories: dict[int, torch.Tensor] = {}
        self._used_addresses: set[int] = set()

    def tensor(self, index: Any) -> torch.Tensor:
        """Return the tensor of row number ``index``.

        Raises FormatError if the row does not fit its memory.
        """
        name, shape, strides, number, offset = self._rows[at(index)]
        dtype = DTYPES[name]
        memory = self._memory(at(number))
        # checked before computing: an int times a list would be a long list
        shape = [at(size) for size in shape]
        steps = c_strides(shape) if strides is None else [at(step) for step in strides]
        if offset is None:
            # the memory has only the elements of this tensor, in C order
            if math.prod(shape) * dtype.itemsize != memory.nbytes:
                raise _misfit(shape, memory)
            elements = memory.view(dtype).reshape(shape)
            if strides is None:
                return elements
            return torch.empty_strided(shape, steps, dtype=dtype).copy_(elements)

        # the elements lie in the memory by their strides, from byte ``offset`` on
        if at(offset) % dtype.itemsize:
            raise _misfit(shape, memory)
        # without the bytes of an incomplete element at the end
        end = memory.nbytes - memory.nbytes % dtype.itemsize
        elements = memory[:end].view(dtype)
        return elements.as_strided(shape, steps, offset // dtype.itemsize)

    def _memory(self, number: int) -> torch.Tensor:
        """Return the bytes of a memory as a tensor.

        The tensor is the buffer itself, or a copy if it is small, read-only or in use.
        """
        if number not in self._memories:
            memory = self._in_place(self._buffers[number])
            if memory is None:
                memory = _copy(self._buffers[number])
            self._used_addresses.add(memory.data_ptr())
            self._memories[number] = memory
        return self._memories[number]

    def _in_place(self, buffer: memoryview) -> torch.Tensor | None:
        if buffer.readonly or buffer.nbytes < INLINE:
            return None
        memory = torch.frombuffer(buffer, dtype=torch.uint8)
        return None if memory.data_ptr() in self._used_addresses else memory


def _copy(buffer: memoryview) -> torch.Tensor:
    memory = torch.empty(buffer.nbytes, dtype=torch.uint8)
    memoryview(memory.numpy()).cast("B")[:] = buffer  # type: ignore[arg-type]
    return memory


def _misfit(shape: Sequence[int], memory: torch.Tensor) -> FormatError:
    return FormatError(
        "format-invalid",
        f"a constant of the shape {list(shape)} does not fit its memory of"
        f" {memory.nbytes} bytes",
    )
