"""A program file: the flatbuffer, then its segments, each written from where it is and
never joined.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from delegraph.backend import Blob

from ..program import flat_tensor, tables
from ..program.flat_tensor import FlatTensor
from ..program.tables import DataSegment, Program
from .builder import Builder

SEGMENT_ALIGNMENT = 128
"""Bytes that the first segment is aligned to, and a segment that does not say what it
needs.
"""
LEAST_ALIGNMENT = 16
"""Bytes that every segment is aligned to: what ExecuTorch's loaders of files allocate
by, unless told otherwise.
"""
PROGRAM_MAGIC = b"eh00"
DATA_MAGIC = b"FH01"


@dataclass(frozen=True)
class Segment:
    """Bytes of a segment, and what their start is to be aligned to."""

    content: bytes | Blob
    alignment: int = SEGMENT_ALIGNMENT


@dataclass(frozen=True)
class Part:
    """A segment that lies in another one, which has its bytes from ``start`` on;
    ``segment`` is that one's position.
    """

    segment: int
    start: int
    size: int


class SegmentedFile:
    """A flatbuffer and its segments as the bytes of a file (a
    ``delegraph.backend.Blob``).

    ``finish`` makes the flatbuffer when the places of the segments are known.
    """

    def __init__(
        self,
        segments: Sequence[Segment | Part],
        finish: Callable[[tuple[DataSegment, ...]], tuple[bytes, int]],
    ) -> None:
        self._written: list[tuple[int, Segment]] = []
        places: list[DataSegment] = []
        end = 0
        for segment in segments:
            if isinstance(segment, Part):
                places.append(
                    DataSegment(
                        places[segment.segment].offset + segment.start, segment.size
                    )
                )
                continue
            start = end + -end % math.lcm(LEAST_ALIGNMENT, segment.alignment)
            self._written.append((start, segment))
            end = start + len(segment.content)
            places.append(DataSegment(start, len(segment.content)))
        self._structure, self._base = finish(tuple(places))
        # empty segments alone take no place
        self._size = self._base + end if end else len(self._structure)

    def __len__(self) -> int:
        return self._size

    def write_to(self, file: BinaryIO) -> None:
        """Append the bytes to ``file``."""
        file.write(self._structure)
        if not self._base:
            return
        position = len(self._structure)
        for offset, segment in self._written:
            start = self._base + offset
            file.write(bytes(start - position))
            write_content(segment.content, file)
            position = start + len(segment.content)

    def join(self) -> bytes:
        """All bytes at once."""
        stream = io.BytesIO()
        self.write_to(stream)
        return stream.getvalue()


def write_content(content: bytes | Blob, file: BinaryIO) -> None:
    """Append bytes, joined or not."""
    if isinstance(content, bytes):
        file.write(content)
    else:
        content.write_to(file)


def program_file(program: Program, segments: Sequence[Segment | Part]) -> SegmentedFile:
    """The ``.pte`` file of a program, whose table of segments is filled in."""
    return SegmentedFile(
        segments, lambda places: _finish_program(replace(program, segments=places))
    )


def data_file(data: FlatTensor, segments: Sequence[Segment | Part]) -> SegmentedFile:
    """The ``.ptd`` file of named data, whose table of segments is filled in."""
    return SegmentedFile(
        segments, lambda places: _finish_data(replace(data, segments=places))
    )


def _finish_program(program: Program) -> tuple[bytes, int]:
    segments_size = _end(program.segments)

    def header(size: int) -> bytes:
        return struct.pack(
            "<4sIQQQ",
            PROGRAM_MAGIC,
            32,
            size,
            _base(size, segments_size),
            segments_size,
        )

    return _build(program, tables.IDENTIFIER, header, segments_size)


def _finish_data(data: FlatTensor) -> tuple[bytes, int]:
    segments_size = _end(data.segments)

    def header(size: int) -> bytes:
        return struct.pack(
            "<4sIQQQQ",
            DATA_MAGIC,
            40,
            0,
            size,
            _base(size, segments_size),
            segments_size,
        )

    return _build(data, flat_tensor.IDENTIFIER, header, segments_size)


def _build(
    root: Any, identifier: str, header: Callable[[int], bytes], segments_size: int
) -> tuple[bytes, int]:
    builder = Builder()
    structure = builder.finish(builder.add(root), identifier, header)
    return structure, _base(len(structure), segments_size)


def _end(segments: Sequence[DataSegment]) -> int:
    return max((s.offset + s.size for s in segments), default=0)


def _base(size: int, segments_size: int) -> int:
    """Where segments start; 0 if there are none, as runtimes expect."""
    return size + -size % SEGMENT_ALIGNMENT if segments_size else 0
