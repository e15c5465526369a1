"""Reading ``.pte`` and ``.ptd`` files: the flatbuffer, then views of the segments.
Nothing of a segment is copied.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from delegraph.io.flatbuffer import root

from ..program import flat_tensor, tables
from ..program.flat_tensor import FlatTensor
from ..program.tables import BackendDelegate, DataSegment, Program
from .file import DATA_MAGIC, PROGRAM_MAGIC
from .unpack import Unpacker, damaged

Bytes = bytes | bytearray | memoryview
_HEADER = 8
"""Where the header with the places of flatbuffer and segments starts."""
MAPPED = 1 << 16
"""Bytes from which on a file is mapped into memory, not read."""


@dataclass(frozen=True)
class ProgramFile:
    """A ``.pte`` file: what its flatbuffer says, and the bytes of its segments."""

    program: Program
    segments: tuple[memoryview, ...]


@dataclass(frozen=True)
class DataFile:
    """A ``.ptd`` file: what its flatbuffer says, and the bytes of its segments."""

    data: FlatTensor
    segments: tuple[memoryview, ...]


def open_bytes(path: Path) -> memoryview:
    """The bytes of a file; of a large one only what is looked at is loaded, so it must
    not shrink meanwhile.

    They are writable, and writing does not change the file: torch shares no memory that
    is read-only.
    """
    if path.stat().st_size < MAPPED:
        return memoryview(bytearray(path.read_bytes()))
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


def read_program(data: Bytes) -> ProgramFile:
    """Read a ``.pte`` file. Raises FormatError for a damaged one, and for a version
    that we do not know.

    What its values and instructions refer to is not looked at here: ``check_program``
    does that.
    """
    view = memoryview(data).cast("B")
    what = ".pte file"
    size, base, extent = _places(view, PROGRAM_MAGIC, "<QQQ", what)
    program: Program = Unpacker().table(
        Program, root(view[:size], tables.IDENTIFIER, what)
    )
    if program.version != tables.VERSION:
        raise damaged(
            what,
            f"its version is {program.version}; {tables.VERSION} is the only one known",
        )
    return ProgramFile(program, _segments(view, program.segments, base, extent, what))


def read_data(data: Bytes) -> DataFile:
    """Read a ``.ptd`` file. Raises FormatError for a damaged one, and for a version
    that we do not know.
    """
    view = memoryview(data).cast("B")
    what = ".ptd file"
    size, base, extent = _places(view, DATA_MAGIC, "<8xQQQ", what)
    table: FlatTensor = Unpacker().table(
        FlatTensor, root(view[:size], flat_tensor.IDENTIFIER, what)
    )
    if table.version != flat_tensor.VERSION:
        raise damaged(
            what,
            f"its version is {table.version}; {flat_tensor.VERSION} is the only one"
            " known",
        )
    segments = _segments(view, table.segments, base, extent, what)
    for named in table.named_data:
        if named.segment_index >= len(segments):
            raise damaged(
                what,
                f"{named.key!r} names segment {named.segment_index} of {len(segments)}",
            )
    return DataFile(table, segments)


def _places(
    view: memoryview, magic: bytes, form: str, what: str
) -> tuple[int, int, int]:
    """(size of the flatbuffer, start of the segments, their size), in bytes. A file
    without header has no segments.
    """
    length = 8 + struct.calcsize(form)
    if len(view) < _HEADER + length or bytes(view[_HEADER : _HEADER + 4]) != magic:
        return len(view), len(view), 0
    stated = struct.unpack_from("<I", view, _HEADER + 4)[0]
    size, base, extent = struct.unpack_from(form, view, _HEADER + 8)
    if stated < length:
        raise damaged(what, f"its header has {stated} bytes; {length} are the least")
    if size > len(view) or (base and (base < size or base + extent > len(view))):
        raise damaged(
            what,
            f"its header says {size} bytes and segments up to {base + extent}; it has"
            f" {len(view)}",
        )
    return size, base or size, extent if base else 0


def _segments(
    view: memoryview, listed: Sequence[DataSegment], base: int, extent: int, what: str
) -> tuple[memoryview, ...]:
    for number, segment in enumerate(listed):
        if segment.offset + segment.size > extent:
            raise damaged(
                what, f"segment {number} reaches beyond the end of the segments"
            )
    return tuple(view[base + s.offset : base + s.offset + s.size] for s in listed)


def named_segments(file: ProgramFile) -> dict[str, memoryview]:
    """The named data of a program, by key."""
    return {
        named.key: file.segments[named.segment_index]
        for named in file.program.named_data
    }


def blob_of(file: ProgramFile, delegate: BackendDelegate) -> bytes | memoryview:
    """The blob of a delegate."""
    place = delegate.processed
    assert place is not None, "the program was checked"
    if place.location == tables.BlobLocation.SEGMENT:
        return file.segments[place.index]
    inline: bytes = file.program.backend_delegate_data[place.index].data
    return inline
