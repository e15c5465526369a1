"""Define the form of a program, and write and read its bytes.

A *form* has tables in JSON (``Structure`` and ``Labels``), and *memories*: contiguous
bytes that contain one or several constants. The bytes of a form begin with a head and a
table of memories. Then the structure, the labels and the small memories follow.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

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
bytes, which has no other user.
"""


class Structure(NamedTuple):
    """The tables of a form that backends depend on, in the order of its JSON.

    ``symbols``: ``SymbolsWritten.table``. ``targets``: the names of called operators.
    ``types``: rows of ``TypesWritten``. ``constants``: rows of ``written_constants``.
    ``signature``: rows for inputs and rows for outputs. ``graphs``: a row for each node
    of each graph, with the outermost graph first.
    """

    version: int
    default_dtype: str
    symbols: list[Any]
    targets: list[str]
    types: list[Any]
    constants: list[Any]
    signature: list[Any]
    graphs: list[Any]


class Labels(NamedTuple):
    """The tables of a form that backends do not see, in the order of its JSON.

    ``inputs``: the names of constants, None for a run-time input. ``symbols``: the names
    of symbols. ``handles``: debug handles by their number. ``origin``: the method and
    the tag of the partition. ``texts``: stack traces and module stacks, each once.
    ``graphs``: for each node its name, its target, and the numbers of two texts.
    """

    inputs: list[str | None]
    symbols: list[str]
    handles: list[int]
    origin: dict[str, Any]
    texts: list[str]
    graphs: list[Any]


def dumps(value: Any) -> bytes:
    """Return ``value``, which has no floats, as JSON of one spelling: ASCII without
    blanks.
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


@dataclass(frozen=True)
class Form:
    """A program in the canonical form.

    ``structure``: the JSON of a ``Structure``. Programs that differ only in names,
    source lines and contents of constants have equal structures. ``labels``: the JSON of
    ``Labels``. ``memories``: the bytes of the constants, by reference. ``tensors``: the
    constants of the original program, by their row in the structure.
    """

    structure: bytes
    labels: bytes
    memories: Sequence[Memory]
    tensors: Sequence[torch.Tensor] = ()

    @property
    def handles(self) -> list[int]:
        """Return the program's debug handles; handle number n of the form comes at index
        n - 1.
        """
        return Labels(*json.loads(self.labels)).handles

    @property
    def names(self) -> list[Any]:
        """Return the writer's names of inputs and constants, of symbols, and of nodes.

        A node has its name and its target.
        """
        labels = Labels(*json.loads(self.labels))
        nodes = [row[:2] for row in itertools.chain(*labels.graphs)]
        return [labels.inputs, labels.symbols, nodes]

    @cached_property
    def key(self) -> str:
        """Return the SHA-256 digest of the structure and of all constants.

        Programs that backends cannot distinguish have equal keys.
        """
        return hashlib.sha256(self.structure + self._table).hexdigest()

    @property
    def _table(self) -> bytes:
        """Return the digests and sizes of all memories, as bytes."""
        return b"".join(_MEMORY.pack(m.digest, m.size) for m in self.memories)

    def pieces(self) -> Iterator[bytes | memoryview]:
        """Yield the bytes of the form, piece by piece.

        A memory of 1 MB or more is left out: they contain only its digest and size.
        """
        sizes = struct.pack(
            "<4Q", VERSION, len(self.structure), len(self.labels), len(self.memories)
        )
        first = sizes + self._table + self.structure + self.labels
        yield _MAGIC
        yield hashlib.sha256(first).digest()
        yield first
        for memory in self.memories:
            if memory.size < INLINE:
                yield from memory.pieces()


def unpack(
    data: bytes | memoryview, fetch: Fetch | None
) -> tuple[list[Any], list[Any], list[memoryview]]:
    """Return the JSON values of structure and labels, and the memories, of a form.

    A memory of 1 MB or more comes from ``fetch``, and only its size is checked.
    Everything else is compared with its digest. Raises FormatError for damaged bytes,
    for another version, and for a large memory if ``fetch`` is None.
    """
    view = memoryview(data)
    if len(view) < _HEAD.size or bytes(view[: len(_MAGIC)]) != _MAGIC:
        raise FormatError("format-invalid", "these bytes are no serialized program")
    _, digest, version, structure_size, labels_size, count = _HEAD.unpack_from(view)
    if version != VERSION:
        raise FormatError(
            "format-invalid",
            f"the serialized program has version {version}; this delegraph reads"
            f" version {VERSION}",
            hint="read it with the delegraph that wrote it",
        )
    # after the head come the table of memories, the structure, and the labels
    structure_start = _HEAD.size + count * _MEMORY.size
    labels_start = structure_start + structure_size
    end = labels_start + labels_size
    # the digest covers the last 32 bytes of the head, and all bytes after them
    covered = view[_HEAD.size - 32 : end]
    if end > len(view) or hashlib.sha256(covered).digest() != digest:
        raise FormatError(
            "format-invalid", "the serialized program is truncated or damaged"
        )
    memories = list[memoryview]()
    rest = view[end:]
    for digest, size in _MEMORY.iter_unpack(view[_HEAD.size : structure_start]):
        if size < INLINE:
            memory = rest[:size]
            rest = rest[size:]
            damaged = hashlib.sha256(memory).digest() != digest
        else:
            memory = memoryview(b"" if fetch is None else fetch(digest, size)).cast("B")
            damaged = memory.nbytes != size
        if damaged:
            raise FormatError(
                "format-invalid",
                f"a constant of {size} bytes of the serialized program is truncated,"
                " damaged or missing",
                hint="pass fetch=, which returns constants of 1 MB or more",
            )
        memories.append(memory)
    if len(rest):
        raise FormatError(
            "format-invalid", f"{len(rest)} surplus bytes follow the serialized program"
        )
    structure = _json(view[structure_start:labels_start])
    return structure, _json(view[labels_start:end]), memories


def _json(view: memoryview) -> Any:
    """Parse JSON. Raises FormatError for floats, NaN and infinities, which no form has."""

    def refuse(text: str) -> Any:
        raise FormatError(
            "format-invalid",
            f"the serialized program is damaged: its JSON contains {text:.40}, but"
            " only integers are valid there",
        )

    return json.loads(bytes(view), parse_float=refuse, parse_constant=refuse)
