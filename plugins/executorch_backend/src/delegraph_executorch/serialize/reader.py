"""Read ``.pte`` and ``.ptd`` files: the flatbuffer, and views of the segments."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from delegraph_engines.flatbuffer import root

from ..program import flat_tensor, pte_tables
from ..program.flat_tensor import FlatTensor
from ..program.pte_tables import BackendDelegate, DataSegment, Program
from .file import DATA_MAGIC, PROGRAM_MAGIC
from .unpack import Unpacker, damaged

Bytes = bytes | bytearray | memoryview
_HEADER = 8
"""The position of the header, which has the places of flatbuffer and segments."""
MAPPED = 1 << 16
"""Files of at least this many bytes are mapped into memory."""


@dataclass(frozen=True)
class ProgramFile:
    """A ``.pte`` file: the content of its flatbuffer, and the bytes of its segments."""

    program: Program
    segments: tuple[memoryview, ...]


@dataclass(frozen=True)
class DataFile:
    """A ``.ptd`` file: the content of its flatbuffer, and the bytes of its segments."""

    data: FlatTensor
    segments: tuple[memoryview, ...]


def open_bytes(path: Path) -> memoryview:
    """Return the bytes of a file, writable; writing does not change the file.

    A large file is mapped, so only the pages in use are loaded. It must not be
    truncated while it is open. torch does not share read-only memory, so the bytes are
    writable.
    """
    if path.stat().st_size < MAPPED:
        return memoryview(bytearray(path.read_bytes()))
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


def read_program(data: Bytes) -> ProgramFile:
    """Read a ``.pte`` file.

    Raises FormatError for a damaged file or an unknown version.

    References of values and instructions are not checked: use ``check_program``.
    """
    view = memoryview(data).cast("B")
    file_kind = ".pte file"
    size, base, extent = _places(view, PROGRAM_MAGIC, "<QQQ", file_kind)
    program: Program = Unpacker().table(
        Program, root(view[:size], pte_tables.IDENTIFIER, file_kind)
    )
    if program.version != pte_tables.VERSION:
        why = (
            f"its version is {program.version}; only {pte_tables.VERSION} is supported"
        )
        raise damaged(file_kind, why)
    return ProgramFile(
        program, _segments(view, program.segments, base, extent, file_kind)
    )


def read_data(data: Bytes) -> DataFile:
    """Read a ``.ptd`` file.

    Raises FormatError for a damaged file or an unknown version.
    """
    view = memoryview(data).cast("B")
    file_kind = ".ptd file"
    size, base, extent = _places(view, DATA_MAGIC, "<8xQQQ", file_kind)
    table: FlatTensor = Unpacker().table(
        FlatTensor, root(view[:size], flat_tensor.IDENTIFIER, file_kind)
    )
    if table.version != flat_tensor.VERSION:
        why = f"its version is {table.version}; only {flat_tensor.VERSION} is supported"
        raise damaged(file_kind, why)
    segments = _segments(view, table.segments, base, extent, file_kind)
    for named in table.named_data:
        if named.segment_index >= len(segments):
            raise damaged(
                file_kind,
                f"{named.key!r} is in segment {named.segment_index}, but the file has"
                f" {len(segments)} segments",
            )
    return DataFile(table, segments)


class _Places(NamedTuple):
    """The parts of a file, in bytes."""

    flatbuffer_size: int
    segments_start: int
    segments_size: int


def _places(view: memoryview, magic: bytes, form: str, file_kind: str) -> _Places:
    """Return the parts of a file. A file without a header has no segments."""
    length = 8 + struct.calcsize(form)
    if len(view) < _HEADER + length or bytes(view[_HEADER : _HEADER + 4]) != magic:
        return _Places(len(view), len(view), 0)
    header_size = struct.unpack_from("<I", view, _HEADER + 4)[0]
    size, base, extent = struct.unpack_from(form, view, _HEADER + 8)
    if header_size < length:
        raise damaged(
            file_kind, f"its header has {header_size} bytes; it needs at least {length}"
        )
    end = base + extent
    if size > len(view) or (base and (base < size or end > len(view))):
        raise damaged(
            file_kind,
            f"its header declares {size} bytes and segments up to byte {end}; the file"
            f" has {len(view)} bytes",
        )
    return _Places(size, base or size, extent if base else 0)


def _segments(
    view: memoryview,
    listed: Sequence[DataSegment],
    base: int,
    extent: int,
    file_kind: str,
) -> tuple[memoryview, ...]:
    for number, segment in enumerate(listed):
        if segment.offset + segment.size > extent:
            raise damaged(
                file_kind, f"segment {number} reaches beyond the end of the segments"
            )
    return tuple(view[base + s.offset : base + s.offset + s.size] for s in listed)


def named_segments(file: ProgramFile) -> dict[str, memoryview]:
    """Return the named data of a program, by key."""
    return {
        named.key: file.segments[named.segment_index]
        for named in file.program.named_data
    }


def blob_of(file: ProgramFile, delegate: BackendDelegate) -> bytes | memoryview:
    """Return the blob of a delegate."""
    place = delegate.processed
    assert place is not None
    if place.location == pte_tables.BlobLocation.SEGMENT:
        return file.segments[place.index]
    inline: bytes = file.program.backend_delegate_data[place.index].data
    return inline
