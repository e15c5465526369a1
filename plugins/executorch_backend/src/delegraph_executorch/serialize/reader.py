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
"""The position of the header, which has the sizes of the file's parts."""
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
    """Return the bytes of a file.

    A large file is mapped, so only the pages in use are loaded. Do not truncate it
    while it is open. The bytes are writable, because torch does not share read-only
    memory. Writing does not change the file.
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
    parts = _find_parts(view, PROGRAM_MAGIC, "<QQQ", file_kind)
    flatbuffer = view[: parts.flatbuffer_size]
    program: Program = Unpacker().table(
        Program, root(flatbuffer, pte_tables.IDENTIFIER, file_kind)
    )
    if program.version != pte_tables.VERSION:
        why = (
            f"its version is {program.version}; only {pte_tables.VERSION} is supported"
        )
        raise damaged(file_kind, why)
    segments = _segments(view, program.segments, parts, file_kind)
    return ProgramFile(program, segments)


def read_data(data: Bytes) -> DataFile:
    """Read a ``.ptd`` file.

    Raises FormatError for a damaged file or an unknown version.
    """
    view = memoryview(data).cast("B")
    file_kind = ".ptd file"
    parts = _find_parts(view, DATA_MAGIC, "<8xQQQ", file_kind)
    flatbuffer = view[: parts.flatbuffer_size]
    table: FlatTensor = Unpacker().table(
        FlatTensor, root(flatbuffer, flat_tensor.IDENTIFIER, file_kind)
    )
    if table.version != flat_tensor.VERSION:
        why = f"its version is {table.version}; only {flat_tensor.VERSION} is supported"
        raise damaged(file_kind, why)
    segments = _segments(view, table.segments, parts, file_kind)
    for named in table.named_data:
        if named.segment_index >= len(segments):
            raise damaged(
                file_kind,
                f"{named.key!r} is in segment {named.segment_index}, but the file has"
                f" {len(segments)} segments",
            )
    return DataFile(table, segments)


class _FileParts(NamedTuple):
    """The parts of a file, in bytes."""

    flatbuffer_size: int
    segments_start: int
    segments_size: int


def _find_parts(
    view: memoryview, magic: bytes, form: str, file_kind: str
) -> _FileParts:
    """Return the parts of a file. A file without a header has no segments.

    A header has ``magic``, its own size, and in ``form`` the fields of ``_FileParts``.
    """
    least_size = 8 + struct.calcsize(form)
    if len(view) < _HEADER + least_size or bytes(view[_HEADER : _HEADER + 4]) != magic:
        return _FileParts(len(view), len(view), 0)
    header_size = struct.unpack_from("<I", view, _HEADER + 4)[0]
    size, base, segments_size = struct.unpack_from(form, view, _HEADER + 8)
    if header_size < least_size:
        raise damaged(
            file_kind,
            f"its header has {header_size} bytes; it needs at least {least_size}",
        )
    end = base + segments_size
    if size > len(view) or (base and (base < size or end > len(view))):
        raise damaged(
            file_kind,
            f"its header declares {size} bytes and segments up to byte {end}; the file"
            f" has {len(view)} bytes",
        )
    if not base:
        return _FileParts(size, size, 0)
    return _FileParts(size, base, segments_size)


def _segments(
    view: memoryview,
    table: Sequence[DataSegment],
    parts: _FileParts,
    file_kind: str,
) -> tuple[memoryview, ...]:
    """Return the bytes of each segment in the file's table of segments."""
    found = []
    for number, segment in enumerate(table):
        if segment.offset + segment.size > parts.segments_size:
            raise damaged(
                file_kind, f"segment {number} reaches beyond the end of the segments"
            )
        start = parts.segments_start + segment.offset
        found.append(view[start : start + segment.size])
    return tuple(found)


def named_segments(file: ProgramFile) -> dict[str, memoryview]:
    """Return the named data of a program, by key."""
    return {
        named.key: file.segments[named.segment_index]
        for named in file.program.named_data
    }


def blob_of(file: ProgramFile, delegate: BackendDelegate) -> bytes | memoryview:
    """Return the blob of a delegate."""
    reference = delegate.processed
    assert reference is not None
    if reference.location == pte_tables.BlobLocation.SEGMENT:
        return file.segments[reference.index]
    inline: bytes = file.program.backend_delegate_data[reference.index].data
    return inline
