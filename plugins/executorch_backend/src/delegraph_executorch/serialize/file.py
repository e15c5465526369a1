"""Write a program file: the flatbuffer, then its segments.

Each segment is written from its own memory; they are never joined. Offsets of segments
count from the base, the start of the first segment.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, NamedTuple

from delegraph.backend import Blob

from ..program import flat_tensor, pte_tables
from ..program.flat_tensor import FlatTensor
from ..program.pte_tables import DataSegment, Program
from .builder import Builder

SEGMENT_ALIGNMENT = 128
"""Alignment of the first segment in bytes, and of other segments by default."""
LEAST_ALIGNMENT = 16
"""The least alignment of a segment: ExecuTorch's file loaders allocate memory with it."""
PROGRAM_MAGIC = b"eh00"
DATA_MAGIC = b"FH01"


@dataclass(frozen=True)
class Segment:
    """Bytes of a segment, and the alignment of their start."""

    content: bytes | Blob
    alignment: int = SEGMENT_ALIGNMENT


@dataclass(frozen=True)
class Part:
    """A segment inside another one: ``size`` bytes from ``start`` on.

    ``segment`` is the position of the other segment.
    """

    segment: int
    start: int
    size: int


class SegmentedFile:
    """A flatbuffer and its segments as a file (a ``delegraph.backend.Blob``).

    ``finish`` makes the flatbuffer when the offsets of the segments are known.
    """

    def __init__(
        self,
        segments: Sequence[Segment | Part],
        finish: Callable[[tuple[DataSegment, ...]], _Structure],
    ) -> None:
        # (offset from the base, segment), without parts: their segments contain them
        self._written: list[tuple[int, Segment]] = []
        table: list[DataSegment] = []
        end = 0
        for segment in segments:
            if isinstance(segment, Part):
                offset = table[segment.segment].offset + segment.start
                table.append(DataSegment(offset, segment.size))
                continue
            alignment = math.lcm(LEAST_ALIGNMENT, segment.alignment)
            start = end + -end % alignment
            self._written.append((start, segment))
            end = start + len(segment.content)
            table.append(DataSegment(start, len(segment.content)))
        self._structure, self._base = finish(tuple(table))
        # If all segments are empty, the file ends after the flatbuffer.
        self._size = self._base + end if end else len(self._structure)

    def __len__(self) -> int:
        return self._size

    def write_to(self, file: BinaryIO) -> None:
        """Append the bytes to ``file``."""
        file.write(self._structure)
        if not self._base:  # no segment has bytes
            return
        position = len(self._structure)
        for offset, segment in self._written:
            start = self._base + offset
            padding = bytes(start - position)
            file.write(padding)
            write_content(segment.content, file)
            position = start + len(segment.content)

    def join(self) -> bytes:
        """Return all bytes."""
        stream = io.BytesIO()
        self.write_to(stream)
        return stream.getvalue()


def write_content(content: bytes | Blob, file: BinaryIO) -> None:
    """Append bytes or a Blob to ``file``."""
    if isinstance(content, bytes):
        file.write(content)
    else:
        content.write_to(file)


def program_file(program: Program, segments: Sequence[Segment | Part]) -> SegmentedFile:
    """Return the ``.pte`` file of a program, with its table of segments."""
    return SegmentedFile(
        segments, lambda table: _finish_program(replace(program, segments=table))
    )


def data_file(data: FlatTensor, segments: Sequence[Segment | Part]) -> SegmentedFile:
    """Return the ``.ptd`` file of named data, with its table of segments."""
    return SegmentedFile(
        segments, lambda table: _finish_data(replace(data, segments=table))
    )


# magic, length of the header, size of the flatbuffer, base, size of all segments
_PROGRAM_HEADER = "<4sIQQQ"
# magic, length of the header, start and size of the flatbuffer, base, size of segments
_DATA_HEADER = "<4sIQQQQ"


class _Structure(NamedTuple):
    """The bytes of a flatbuffer, and the base of the segments; 0 without segments."""

    content: bytes
    base: int


def _finish_program(program: Program) -> _Structure:
    """Build the flatbuffer of a program; its header has the sizes of the file's parts."""
    segments_size = _end(program.segments)

    def header(size: int) -> bytes:
        """Return the extended header, for a flatbuffer of ``size`` bytes."""
        base = _base(size, segments_size)
        length = struct.calcsize(_PROGRAM_HEADER)
        return struct.pack(
            _PROGRAM_HEADER, PROGRAM_MAGIC, length, size, base, segments_size
        )

    return _build(program, pte_tables.IDENTIFIER, header, segments_size)


def _finish_data(data: FlatTensor) -> _Structure:
    """Build the flatbuffer of named data; its header has the sizes of the file's parts."""
    segments_size = _end(data.segments)

    def header(size: int) -> bytes:
        """Return the extended header, for a flatbuffer of ``size`` bytes."""
        base = _base(size, segments_size)
        length = struct.calcsize(_DATA_HEADER)
        start = 0  # of the flatbuffer
        return struct.pack(
            _DATA_HEADER, DATA_MAGIC, length, start, size, base, segments_size
        )

    return _build(data, flat_tensor.IDENTIFIER, header, segments_size)


def _build(
    root: Any, identifier: str, header: Callable[[int], bytes], segments_size: int
) -> _Structure:
    """Build a flatbuffer with the table ``root``."""
    builder = Builder()
    content = builder.finish(builder.add(root), identifier, header)
    return _Structure(content, _base(len(content), segments_size))


def _end(segments: Sequence[DataSegment]) -> int:
    """Return the end of the last segment, from the base."""
    return max((s.offset + s.size for s in segments), default=0)


def _base(size: int, segments_size: int) -> int:
    """Return the base of segments that follow a flatbuffer of ``size`` bytes.

    If the segments have no bytes, the base is 0, as runtimes expect.
    """
    if segments_size == 0:
        return 0
    return size + -size % SEGMENT_ALIGNMENT
