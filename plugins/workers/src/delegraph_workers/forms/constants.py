"""The constants of a form: which memory each one lies in, the bytes of the memories,
and tensors made from them.

Tensors that share memory when they are written share it again when they are read. Two
tensors with equal content at two addresses stay two, because backends tell constants
apart by address.
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
from delegraph_programs.shared_memory import addresses

from .arguments import DTYPES, NAMES, c_strides
from .sizes import NoForm, at

INLINE = 1 << 20
"""Memories of this many bytes and more are not part of the bytes of a form."""


@dataclass
class Memory:
    """The bytes of one or several constants of a program, by reference.

    ``size``: their number. ``place``: their address; None if they have to be computed:
    the elements of one tensor, brought into C order. ``tensors``: the constants that
    consist of these bytes.
    """

    size: int
    place: int | None
    tensors: list[torch.Tensor]

    def pieces(self) -> Iterator[memoryview]:
        """The bytes, without a copy unless they have to be brought into C order."""
        if self.place is not None:
            yield memoryview((ctypes.c_char * self.size).from_address(self.place)).cast(
                "B"
            )
        elif self.size:
            yield from memory_of(self.tensors[0])

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the bytes."""
        digest = hashlib.sha256()
        for piece in self.pieces():
            digest.update(piece)
        return digest.digest()


def written_constants(
    tensors: Sequence[torch.Tensor],
) -> tuple[list[Any], list[Memory]]:
    """A row for each tensor, and the memories in which the tensors lie; overlapping
    tensors share a memory.

    A row has dtype, shape, strides (None in C order), the number of the memory, and the
    offset in it in bytes (None if the memory has just the elements of this tensor, in C
    order). Raises NoForm for a tensor that has no form.
    """
    spans = [_span(tensor) for tensor in tensors]
    holder: dict[int, Memory] = {}  # position of a tensor in ``tensors`` -> its memory
    # Sorted by address, a tensor that begins before the last memory ends lies in this
    # memory, and may extend it. A tensor without addresses (None) gets a memory of its
    # own.
    last = Memory(0, None, [])
    end = 0
    for k in sorted(range(len(tensors)), key=lambda k: spans[k] or (0, 0)):
        tensor = tensors[k]
        span = spans[k]
        if span is not None and span[0] < end:
            last.size = max(last.size, span[1] - (last.place or 0))
            end = max(end, span[1])
            last.tensors.append(tensor)
        else:
            last = Memory(
                span[1] - span[0] if span else tensor.nbytes, span and span[0], [tensor]
            )
            end = span[1] if span else end
        holder[k] = last
    # in order of their first use
    memories = list({id(holder[k]): holder[k] for k in range(len(tensors))}.values())
    # Gaps between the elements of a tensor that is alone in its memory are no content,
    # and may be large. Without an address, the memory has just the elements.
    for memory in memories:
        if len(memory.tensors) == 1 and memory.size > memory.tensors[0].nbytes:
            memory.size = memory.tensors[0].nbytes
            memory.place = None
    numbers = {id(memory): number for number, memory in enumerate(memories)}
    return [
        _row(t, holder[k], numbers[id(holder[k])], spans[k])
        for k, t in enumerate(tensors)
    ], memories


def _span(tensor: torch.Tensor) -> tuple[int, int] | None:
    """The addresses where the bytes of a tensor begin and end.

    None if it is empty, or if its elements are conjugated or negated lazily. Raises
    NoForm for a tensor that has no bytes on the CPU, or a dtype without a name.
    """
    why = why_no_bytes(tensor) or (
        None if tensor.is_cpu else f"it is on the device {tensor.device}"
    )
    if why is not None or tensor.dtype not in NAMES:
        raise NoForm(
            "the form has no words for a constant:"
            f" {why or f'its dtype is {tensor.dtype}'}"
        )
    return None if tensor.is_conj() or tensor.is_neg() else addresses(tensor)


def _row(
    tensor: torch.Tensor, memory: Memory, number: int, span: tuple[int, int] | None
) -> list[Any]:
    """The row of ``tensor``, as ``written_constants`` describes it.

    The tensor lies in ``memory``, which has the number ``number``, at the addresses
    ``span`` (None if it has none). Raises NoForm if it begins in the middle of an
    element of another tensor.
    """
    shape = list(tensor.shape)
    strides = list(tensor.stride())
    place = None if memory.place is None or span is None else span[0] - memory.place
    if place is not None and place % tensor.element_size():
        raise NoForm(
            "the form has no words for a constant that begins in the middle of an"
            " element of another"
        )
    return [
        NAMES[tensor.dtype],
        shape,
        None if strides == c_strides(shape) else strides,
        number,
        place,
    ]


class ConstantsRead:
    """Creates tensors from ``rows`` of ``written_constants`` and ``buffers``, the bytes
    of the memories.

    Small memories are copied. Large ones are used in place, so their buffers must be
    writable and used by nobody else, for example mapped privately. Two memories stay
    apart even if their content is equal.
    """

    def __init__(self, rows: Sequence[Any], buffers: Sequence[memoryview]) -> None:
        """``rows``: those of ``written_constants``.

        ``buffers``: the bytes of each memory, by its number.
        """
        self._rows = rows
        self._buffers = buffers
        self._memories: dict[int, torch.Tensor] = {}
        self._used_addresses: set[int] = set()

    def tensor(self, index: Any) -> torch.Tensor:
        """The tensor of row number ``index``.

        Raises FormatError if the row does not fit its memory.

        A row without a place (None): the memory has just the elements of the tensor, in
        C order. Else the elements lie in the memory by their strides, from byte
        ``place`` on.
        """
        name, shape, strides, number, place = self._rows[at(index)]
        dtype = DTYPES[name]
        memory = self._memory(at(number))
        # before anything is computed: an int times a list is a long list
        shape = [at(d) for d in shape]
        size = math.prod(shape) * dtype.itemsize  # in bytes
        steps = c_strides(shape) if strides is None else [at(s) for s in strides]
        # wrong: another number of bytes, or a place in the middle of an element
        misfits = size != memory.nbytes if place is None else at(place) % dtype.itemsize
        if misfits:
            raise FormatError(
                "format-invalid",
                f"a constant of the shape {shape} has {memory.nbytes} bytes",
            )
        if place is None:
            elements = memory.view(dtype).reshape(shape)
            return (
                elements
                if strides is None
                else torch.empty_strided(shape, steps, dtype=dtype).copy_(elements)
            )
        # the memory as elements of this dtype, without the bytes of an incomplete one
        # at the end
        elements = memory[: memory.nbytes - memory.nbytes % dtype.itemsize].view(dtype)
        return elements.as_strided(shape, steps, place // dtype.itemsize)

    def _memory(self, number: int) -> torch.Tensor:
        """The bytes of a memory as a tensor: the buffer itself, or a copy if it is
        small, read-only or in use.
        """
        if number not in self._memories:
            buffer = self._buffers[number]
            memory = (
                None
                if buffer.readonly or not buffer.nbytes
                else torch.frombuffer(buffer, dtype=torch.uint8)
            )
            if (
                memory is None
                or memory.nbytes < INLINE
                or memory.data_ptr() in self._used_addresses
            ):
                memory = torch.empty(buffer.nbytes, dtype=torch.uint8)
                memoryview(memory.numpy()).cast("B")[:] = buffer  # type: ignore[arg-type]
            self._used_addresses.add(memory.data_ptr())
            self._memories[number] = memory
        return self._memories[number]
