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

    A large file is mapped, so only the pages in use are loaded. Do not truncate a file
    while its bytes are in use. The bytes are writable, because torch does not share
    read-only memory. Writes to them do not change the file.
    """
    if path.stat().st_size < MAPPED:
        return memoryview(bytearray(path.read_bytes()))
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


def read_program(data: Bytes) -> ProgramFile:
    """Read a ``.pte`` file.

    Raises FormatError for a damaged file or an unknown version. References of values and
    instructions are checked by ``check_program``, not here.
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

    A header begins with ``magic`` and its own size, each of four bytes. Then it has the
    fields of ``_FileParts``; ``form`` is their ``struct`` format.
    """
    without_segments = _FileParts(len(view), len(view), 0)
    least_size = 8 + struct.calcsize(form)
    if len(view) < _HEADER + least_size:
        return without_segments
    found_magic, header_size = struct.unpack_from("<4sI", view, _HEADER)
    if found_magic != magic:
        return without_segments
    size, base, segments_size = struct.unpack_from(form, view, _HEADER + 8)
    if header_size < least_size:
        raise damaged(
            file_kind,
            f"its header has {header_size} bytes; it needs at least {least_size}",
        )
    end = base + segments_size
    # base 0: the file has no segments
    segments_fit = base == 0 or (base >= size and end <= len(view))
    if size > len(view) or not segments_fit:
        raise damaged(
            file_kind,
            f"its header declares {size} bytes and segments up to byte {end}; the file"
            f" has {len(view)} bytes",
        )
    if base == 0:
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
