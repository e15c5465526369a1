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
from delegraph.errors import FormatError

from .constants import INLINE, Memory

VERSION = 1
_MAGIC = b"delegraph work\n\0"
# magic, SHA-256 of the rest without constants, version, sizes of the parts
_HEAD = struct.Struct("<16s32s4Q")
_MEMORY = struct.Struct("<32sQ")  # SHA-256, bytes
Fetch = Callable[[bytes, int], Any]
"""A function from the SHA-256 and the size of a memory to a writable buffer of its
bytes, used by nobody else.
"""


def dumps(value: Any) -> bytes:
    """``value``, which has no floats, as JSON of one spelling: ASCII without blanks."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


@dataclass(frozen=True)
class Form:
    """A program in the canonical form.

    ``structure``: all that backends may depend on, without the contents of constants.
    Programs that differ only in names, source lines and contents of constants have
    equal structures. ``beside``: the user's names, debug handles, symbols, source lines
    and modules. Both are JSON. ``memories``: the bytes of the constants, by reference.
    ``tensors``: the constants of the program that was written, by their row in the
    structure; none in a form that was read.
    """

    structure: bytes
    beside: bytes
    memories: Sequence[Memory]
    tensors: Sequence[torch.Tensor] = ()

    @property
    def handles(self) -> list[int]:
        """The program's debug handles: ``handles[n - 1]`` is the handle that the form
        numbers ``n``.
        """
        handles: list[int] = json.loads(self.beside)[2]
        return handles

    @property
    def names(self) -> list[Any]:
        """The writer's names: of inputs and constants, of symbols, and the name and
        target of every node.
        """
        targets, symbols, _, _, _, graphs = json.loads(self.beside)
        return [targets, symbols, [row[:2] for graph in graphs for row in graph]]

    @cached_property
    def key(self) -> str:
        """SHA-256 of the structure and of all constants.

        Programs that backends cannot tell apart have equal keys.
        """
        return hashlib.sha256(self.structure + self._table).hexdigest()

    @property
    def _table(self) -> bytes:
        """The digests and sizes of all memories, as bytes."""
        return b"".join(_MEMORY.pack(m.digest, m.size) for m in self.memories)

    def pieces(self) -> Iterator[bytes | memoryview]:
        """The bytes of the form, piece by piece.

        Of a memory of 1 MB and more they have only digest and size.
        """
        sizes = struct.pack(
            "<4Q", VERSION, len(self.structure), len(self.beside), len(self.memories)
        )
        first = sizes + self._table + self.structure + self.beside
        yield from (_MAGIC, hashlib.sha256(first).digest(), first)
        for memory in (m for m in self.memories if m.size < INLINE):
            yield from memory.pieces()


def unpack(
    data: bytes | memoryview, fetch: Fetch | None
) -> tuple[list[Any], list[Any], list[memoryview]]:
    """The structure, the ``beside`` and the memories of a form (see ``Form``), from its
    bytes.

    A memory of 1 MB and more comes from ``fetch``, and only its size is checked;
    everything else is compared with its digest. Raises FormatError for damaged bytes,
    for another version, and for a large memory if ``fetch`` is None.
    """
    view = memoryview(data)
    if len(view) < _HEAD.size or bytes(view[: len(_MAGIC)]) != _MAGIC:
        raise FormatError("format-invalid", "these bytes are no form of a program")
    # sizes of the structure and of ``beside`` in bytes; number of memories
    _, digest, version, *sizes, count = _HEAD.unpack_from(view)
    if version != VERSION:
        text = (
            f"the form of the program has version {version}, and this delegraph reads"
            f" version {VERSION}"
        )
        raise FormatError(
            "format-invalid", text, hint="read it with the delegraph that wrote it"
        )
    # after the head: the table of memories, from ``start`` the structure, from
    # ``middle`` ``beside``, until ``end``
    start = _HEAD.size + count * _MEMORY.size
    middle = start + sizes[0]
    end = start + sum(sizes)
    # the digest is of all from the version on, the last 32 bytes of the head
    if (
        end > len(view)
        or hashlib.sha256(view[_HEAD.size - 32 : end]).digest() != digest
    ):
        raise FormatError(
            "format-invalid", "the form of a program is truncated or damaged"
        )
    memories = list[memoryview]()
    rest = view[end:]
    for digest, size in _MEMORY.iter_unpack(view[_HEAD.size : start]):
        if size < INLINE:
            memory = rest[:size]
            rest = rest[size:]
            damaged = hashlib.sha256(memory).digest() != digest
        else:
            memory = memoryview(b"" if fetch is None else fetch(digest, size)).cast("B")
            damaged = memory.nbytes != size
        if damaged:
            text = (
                f"a constant of {size} bytes in the form of a program is truncated,"
                " damaged or not there"
            )
            raise FormatError(
                "format-invalid", text, hint="fetch= gives those of 1 MB and more"
            )
        memories.append(memory)
    if len(rest):
        raise FormatError(
            "format-invalid", f"{len(rest)} bytes follow the form of a program"
        )
    return _json(view[start:middle]), _json(view[middle:end]), memories


def _json(view: memoryview) -> Any:
    """Parse JSON. Raises FormatError for floats, NaN and infinities, which no form has."""

    def refuse(text: str) -> Any:
        """Raise FormatError for the number ``text``."""
        raise FormatError(
            "format-invalid", f"the form of a program has the number {text:.40}"
        )

    return json.loads(bytes(view), parse_float=refuse, parse_constant=refuse)
