"""The form of a program, and forms as bytes."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ...errors import FormatError
from .constants import INLINE, Memory

VERSION = 1
_MAGIC = b"delegraph work\n\0"
_HEAD = struct.Struct("<16s32s4Q")  # magic, SHA-256 of what follows but constants, version, sizes of the parts
_MEMORY = struct.Struct("<32sQ")  # SHA-256, bytes
Fetch = Callable[[bytes, int], Any]
"""Given the SHA-256 and the size of a memory, returns a writable buffer of its bytes that nobody else writes."""


def dumps(value: Any) -> bytes:
    """JSON in one spelling: no blanks, ASCII, no floats."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


@dataclass(frozen=True)
class Form:
    """What backends may compute by: the structure of a program, and the memories of its constants, by reference.

    ``structure`` is equal for programs that differ in names, source lines and the contents of constants alone.
    ``beside`` is what the form leaves out: the user's names, debug handles, symbols, source lines and modules. Both are
    JSON. ``tensors`` are the program's own, by their rows in the structure.
    """

    structure: bytes
    beside: bytes
    memories: Sequence[Memory]
    tensors: Sequence[torch.Tensor] = ()

    @property
    def handles(self) -> list[int]:
        """The program's debug handles, by the numbers from 1 on that the form has for them."""
        handles: list[int] = json.loads(self.beside)[2]
        return handles

    @property
    def names(self) -> list[Any]:
        """What nodes, constants, symbols and subgraphs are called."""
        targets, symbols, _, _, _, graphs = json.loads(self.beside)
        return [targets, symbols, [row[:2] for graph in graphs for row in graph]]

    @cached_property
    def key(self) -> str:
        """A hash of the structure and all constants: programs have the same one if they are the same to backends."""
        return hashlib.sha256(self.structure + self._table).hexdigest()

    @property
    def _table(self) -> bytes:
        """The digests and sizes of all memories, as bytes."""
        return b"".join(_MEMORY.pack(m.digest, m.size) for m in self.memories)

    def pieces(self) -> Iterator[bytes | memoryview]:
        """The form as bytes, piece by piece, without the memories of 1 MB and more: those go by their digests."""
        sizes = struct.pack("<4Q", VERSION, len(self.structure), len(self.beside), len(self.memories))
        first = sizes + self._table + self.structure + self.beside
        yield from (_MAGIC, hashlib.sha256(first).digest(), first)
        for memory in (m for m in self.memories if m.size < INLINE):
            yield from memory.pieces()


def unpack(data: bytes | memoryview, fetch: Fetch | None) -> tuple[list[Any], list[Any], list[memoryview]]:
    """Structure, what is beside it, and memories, read from the bytes of a form.

    A memory of 1 MB and more comes from ``fetch``, and only its size is checked; everything else is compared with its
    digest. Raises FormatError for damaged bytes.
    """
    view = memoryview(data)
    if len(view) < _HEAD.size or bytes(view[: len(_MAGIC)]) != _MAGIC:
        raise FormatError("format-invalid", "these bytes are no form of a program")
    _, digest, version, *sizes, count = _HEAD.unpack_from(view)
    if version != VERSION:
        text = f"the form of the program has version {version}, and this delegraph reads version {VERSION}"
        raise FormatError("format-invalid", text, hint="read it with the delegraph that wrote it")
    start = _HEAD.size + count * _MEMORY.size
    middle, end = start + sizes[0], start + sum(sizes)
    if end > len(view) or hashlib.sha256(view[_HEAD.size - 32 : end]).digest() != digest:
        raise FormatError("format-invalid", "the form of a program is truncated or damaged")
    memories, rest = list[memoryview](), view[end:]
    for digest, size in _MEMORY.iter_unpack(view[_HEAD.size : start]):
        if size < INLINE:
            memory, rest = rest[:size], rest[size:]
            damaged = hashlib.sha256(memory).digest() != digest
        else:
            memory = memoryview(b"" if fetch is None else fetch(digest, size)).cast("B")
            damaged = memory.nbytes != size
        if damaged:
            text = f"a constant of {size} bytes in the form of a program is truncated, damaged or not there"
            raise FormatError("format-invalid", text, hint="fetch= gives those of 1 MB and more")
        memories.append(memory)
    if len(rest):
        raise FormatError("format-invalid", f"{len(rest)} bytes follow the form of a program")
    return _json(view[start:middle]), _json(view[middle:end]), memories


def _json(view: memoryview) -> Any:
    """The value of JSON text, in which a form never has floats or NaN: FormatError for these."""

    def refuse(text: str) -> Any:
        raise FormatError("format-invalid", f"the form of a program has the number {text:.40}")

    return json.loads(bytes(view), parse_float=refuse, parse_constant=refuse)
