"""The constants of a form: which memory each one lies in, the bytes of the memories, and tensors made from them.

Tensors that share memory when they are written share it again when they are read. Two tensors with equal content at two
addresses stay two, because backends tell constants apart by address.
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

from ...errors import FormatError
from ...io.weights import memory_of, why_no_bytes
from ..shared_memory import addresses
from .sizes import NoForm, at
from .values import DTYPES, NAMES, c_strides

INLINE = 1 << 20
"""Bytes from which on a memory is no part of packed bytes."""


@dataclass
class Memory:
    """Bytes of constants of a program, by reference.

    Those from address ``place`` on, or a tensor's elements in C order. It is C order if ``place`` is None. ``tensors``
    are the constants that lie in it.
    """

    size: int
    place: int | None
    tensors: list[torch.Tensor]

    def pieces(self) -> Iterator[memoryview]:
        """The bytes, without a copy if they are as in memory."""
        if self.place is not None:
            yield memoryview((ctypes.c_char * self.size).from_address(self.place)).cast("B")
        elif self.size:
            yield from memory_of(self.tensors[0])

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the bytes."""
        digest = hashlib.sha256()
        for piece in self.pieces():
            digest.update(piece)
        return digest.digest()


def written_constants(tensors: Sequence[torch.Tensor]) -> tuple[list[Any], list[Memory]]:
    """A row for each tensor, and the memories that the tensors lie in. Overlapping tensors have one memory.

    A row is dtype, shape, strides (None in C order), the number of the memory, and the place in it in bytes.
    """
    spans = [_span(tensor) for tensor in tensors]
    of: dict[int, Memory] = {}
    last, end = Memory(0, None, []), 0
    for k in sorted(range(len(tensors)), key=lambda k: spans[k] or (0, 0)):
        tensor, span = tensors[k], spans[k]
        if span is not None and span[0] < end:
            last.size, end = max(last.size, span[1] - (last.place or 0)), max(end, span[1])
            last.tensors.append(tensor)
        else:
            last = Memory(span[1] - span[0] if span else tensor.nbytes, span and span[0], [tensor])
            end = span[1] if span else end
        of[k] = last
    memories = list({id(of[k]): of[k] for k in range(len(tensors))}.values())  # numbered as they are first used
    for memory in memories:  # what lies between the elements of a tensor is none of its content, and may be far more
        if len(memory.tensors) == 1 and memory.size > memory.tensors[0].nbytes:
            memory.size, memory.place = memory.tensors[0].nbytes, None
    numbers = {id(memory): number for number, memory in enumerate(memories)}
    return [_row(t, of[k], numbers[id(of[k])], spans[k]) for k, t in enumerate(tensors)], memories


def _span(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Where the bytes of a tensor begin and end; None if they are to be brought into C order, or there are none."""
    why = why_no_bytes(tensor) or (None if tensor.is_cpu else f"it is on the device {tensor.device}")
    if why is not None or tensor.dtype not in NAMES:
        raise NoForm(f"the form has no words for a constant: {why or f'its dtype is {tensor.dtype}'}")
    return None if tensor.is_conj() or tensor.is_neg() else addresses(tensor)


def _row(tensor: torch.Tensor, memory: Memory, number: int, span: tuple[int, int] | None) -> list[Any]:
    """The row of ``tensor``, whose bytes are ``span``, in ``memory`` with that number."""
    shape, strides = list(tensor.shape), list(tensor.stride())
    place = None if memory.place is None or span is None else span[0] - memory.place
    if place is not None and place % tensor.element_size():
        raise NoForm("the form has no words for a constant that begins in the middle of an element of another")
    return [NAMES[tensor.dtype], shape, None if strides == c_strides(shape) else strides, number, place]


class ConstantsRead:
    """Makes the tensors of a form from the bytes of its memories, ``buffers``.

    Small ones are copied. Large ones are used as they are, so their buffers have to be writable and nobody else's:
    mapped privately, for example. Two memories never become one, even if their content is equal.
    """

    def __init__(self, rows: Sequence[Any], buffers: Sequence[memoryview]) -> None:
        self._rows, self._buffers = rows, buffers
        self._memories: dict[int, torch.Tensor] = {}
        self._taken: set[int] = set()

    def tensor(self, index: Any) -> torch.Tensor:
        """The tensor of the row ``index``; FormatError if the row does not fit its memory."""
        name, shape, strides, number, place = self._rows[at(index)]
        dtype, memory = DTYPES[name], self._memory(at(number))
        size, steps = math.prod(shape) * dtype.itemsize, c_strides(shape) if strides is None else strides
        bad = size != memory.nbytes if place is None else at(place) % dtype.itemsize
        if bad or min((*shape, *steps, 0)) < 0:
            raise FormatError("format-invalid", f"a constant of the shape {shape} has {memory.nbytes} bytes")
        if place is None:
            elements = memory.view(dtype).reshape(shape)
            return elements if strides is None else torch.empty_strided(shape, steps, dtype=dtype).copy_(elements)
        elements = memory[: memory.nbytes - memory.nbytes % dtype.itemsize].view(dtype)
        return elements.as_strided(shape, steps, place // dtype.itemsize)

    def _memory(self, number: int) -> torch.Tensor:
        """The bytes of a memory as a tensor: the buffer itself, or a copy if it is small, read-only or used already."""
        if number not in self._memories:
            buffer = self._buffers[number]
            given = None if buffer.readonly or not buffer.nbytes else torch.frombuffer(buffer, dtype=torch.uint8)
            if given is None or given.nbytes < INLINE or given.data_ptr() in self._taken:
                given = torch.empty(buffer.nbytes, dtype=torch.uint8)
                memoryview(given.numpy()).cast("B")[:] = buffer  # type: ignore[arg-type]
            self._taken.add(given.data_ptr())
            self._memories[number] = given
        return self._memories[number]
