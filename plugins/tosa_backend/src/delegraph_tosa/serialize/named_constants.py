"""TOSA files without their large constants, which become named data.

Several delegates share named data. The layout of such a file:

    8 bytes "dlgrCUT2"
    number of constants, uint32
    number of repeated constants, uint32
    for each constant: position in the file, uint64; size, uint64; SHA-256
    for each repeated constant: position, uint64; size, uint64; the 4 repeated bytes
    size of the rest of the file, uint64
    the rest of the file, compressed with zlib

All numbers are little-endian, and positions ascend. ``key_of`` maps a SHA-256 to the
key of the named data. A repeated constant repeats the same 4 bytes, mostly zeros, and is
stored as these. Compression reduces the rest to a third or less, because operators of a
graph repeat.
"""

from __future__ import annotations

import hashlib
import io
import struct
import zlib
from collections import Counter
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from delegraph.backend import NamedDataStore, NamedDataStoreOutput
from delegraph.errors import FormatError

from .writer import TosaFile

MAGIC = b"dlgrCUT2"
LARGEST_RATIO = 100
"""Largest accepted compression ratio.

It stops a small damaged file from demanding much memory.
"""
LEAST_BYTES = 1024
"""Size of the smallest constant that becomes named data."""
MOST_EQUAL = 2
"""How many equal constants become named data; further ones stay in the file.

Two, because a tied embedding has its elements in two shapes. Not more, so that a small
damaged file cannot demand a multiple of the named data.
"""
ALIGNMENT = 16
UNIT = 4
"""Number of bytes that a repeated constant repeats."""
_COUNT = struct.Struct("<I")
_SIZE = struct.Struct("<Q")
_TABLE_START = len(MAGIC) + 2 * _COUNT.size
"""Position of the first row of the table of constants."""
_ROW = struct.Struct("<QQ32s")
_REPEATED = struct.Struct(f"<QQ{UNIT}s")


def key_of(digest: bytes) -> str:
    """Return the key of a constant among a program's named data."""
    return f"tosa-constant-{digest.hex()}"


def split_constants(file: TosaFile) -> tuple[bytes, NamedDataStoreOutput]:
    """Return the file without its large constants, and these constants.

    Reads all constants once. Of equal constants, only ``MOST_EQUAL`` are left out.
    """
    large = {
        constant.start: constant
        for constant in file.constants()
        if constant.size >= LEAST_BYTES
    }
    filtered = _ConstantFilter(large)
    file.write_to(filtered)  # type: ignore[arg-type]
    store = NamedDataStore()
    rows = []
    for start, digest in filtered.left_out.items():
        store.add_named_data(key_of(digest), large[start], ALIGNMENT)
        rows.append(_ROW.pack(start, large[start].size, digest))
    repeated = [
        _REPEATED.pack(start, large[start].size, unit)
        for start, unit in filtered.repeated.items()
    ]
    rest = filtered.rest.getvalue()
    packed = zlib.compress(rest)
    if len(rest) > LARGEST_RATIO * len(packed):
        # ``join_constants`` would refuse it
        packed = zlib.compress(rest, level=0)
    counts = _COUNT.pack(len(rows)) + _COUNT.pack(len(repeated))
    content = b"".join([MAGIC, counts, *rows, *repeated, _SIZE.pack(len(rest)), packed])
    return content, store.get_named_data_store_output()


def join_constants(content: bytes, named_data: Mapping[str, bytes]) -> bytes:
    """Return the file with the constants put back. Returns other files unchanged.

    Raises FormatError for a damaged file.
    """
    if not content.startswith(MAGIC):
        return content
    rows, repeated, rest = _table_and_rest(content)
    # check before allocating: a small blob must not demand much more than it contains
    if rows and max(Counter([row.digest for row in rows]).values()) > MOST_EQUAL:
        raise _damaged(f"a constant is left out more than {MOST_EQUAL} times")
    named_size = sum(len(named_data.get(key_of(row.digest), b"")) for row in rows)
    if sum(row.size for row in repeated) > named_size + len(rest):
        raise _damaged("its repeated constants are larger than all other data")
    whole = bytearray()
    # position in ``rest``
    position = 0
    left_out: list[_Row | _Repeated] = [*rows, *repeated]
    for row in sorted(left_out, key=attrgetter("start")):
        data: bytes | None
        if isinstance(row, _Repeated):
            data = row.unit * (row.size // UNIT)
        else:
            data = named_data.get(key_of(row.digest))
        # bytes of ``rest`` between the last constant and this one
        before = row.start - len(whole)
        is_placed = 0 <= before <= len(rest) - position
        if data is None or len(data) != row.size or not is_placed:
            raise _damaged(
                f"the constant at {row.start}, of {row.size} bytes, is missing in the named"
                " data or misplaced"
            )
        whole += rest[position : position + before]
        whole += data
        position += before
    return bytes(whole + rest[position:])


def beginning(content: bytes) -> bytes:
    """Return the first bytes of the flatbuffer that ``content`` begins.

    ``content`` is the beginning of a file with or without its constants. Returns b"" if
    it ends before the flatbuffer. Does not check the rows.
    """
    if not content.startswith(MAGIC) or len(content) < _TABLE_START:
        return content
    packed = content[_rest_start(content) + _SIZE.size :]
    try:
        return zlib.decompressobj().decompress(packed, len(content))
    except zlib.error:
        return b""


class _Row(NamedTuple):
    """A constant in named data."""

    start: int
    size: int
    digest: bytes


class _Repeated(NamedTuple):
    """A constant that repeats the same 4 bytes."""

    start: int
    size: int
    unit: bytes


def _rest_start(content: bytes) -> int:
    """Return where the rest of the file begins, after all rows of the table."""
    count: int = _COUNT.unpack_from(content, len(MAGIC) + _COUNT.size)[0]
    return _repeated_start(content) + count * _REPEATED.size


def _repeated_start(content: bytes) -> int:
    """Return where the rows of repeated constants begin."""
    count: int = _COUNT.unpack_from(content, len(MAGIC))[0]
    return _TABLE_START + count * _ROW.size


def _table_and_rest(content: bytes) -> tuple[list[_Row], list[_Repeated], bytes]:
    """Return the rows of a blob and the rest of its file.

    Raises FormatError for a damaged blob.
    """
    if len(content) < _TABLE_START or len(content) < _rest_start(content):
        raise _damaged("it ends inside the table of its constants")
    middle = _repeated_start(content)
    end = _rest_start(content)
    rows = [_Row(*row) for row in _ROW.iter_unpack(content[_TABLE_START:middle])]
    repeated = [_Repeated(*row) for row in _REPEATED.iter_unpack(content[middle:end])]
    return rows, repeated, _unpacked(content[end:])


def _unpacked(content: bytes) -> bytes:
    """Decompress the rest of a file, which ``content`` has after its size.

    Raises FormatError if zlib cannot decompress it, or it has another size.
    """
    if len(content) < _SIZE.size:
        raise _damaged("it ends before its graph")
    (size,) = _SIZE.unpack_from(content)
    packed = content[_SIZE.size :]
    if size > LARGEST_RATIO * len(packed):
        raise _damaged(
            f"the header declares {size} bytes, but only {len(packed)} compressed bytes follow"
        )
    unpacking = zlib.decompressobj()
    try:
        found = unpacking.decompress(packed, size + 1)
    except zlib.error as e:
        raise _damaged(f"its graph cannot be unpacked: {e}") from e
    if len(found) != size or not unpacking.eof or unpacking.unused_data:
        raise _damaged(
            f"the header declares {size} bytes, but the graph has another size"
        )
    return found


def _damaged(why: str) -> FormatError:
    return FormatError(
        "format-invalid",
        f"a TOSA file with named constants is damaged: {why}",
    )


class _ConstantFilter(io.RawIOBase):
    """A stream that drops large constants, and keeps all other bytes in ``rest``.

    ``large`` maps a position in the file to its constant, which may be written in
    pieces. ``left_out`` maps positions of dropped constants to their SHA-256.

    ``repeated`` maps positions to the 4 bytes that constants repeat, if these are
    written at once. All of them must be smaller than all other data, as
    ``join_constants`` demands.
    """

    def __init__(self, large: Mapping[int, Any]) -> None:
        self.rest = io.BytesIO()
        self.left_out = dict[int, bytes]()
        self.repeated = dict[int, bytes]()
        # bytes that further repeated constants may have
        self._allowed = 0
        self._large = large
        self._position = 0
        # the constant that is being written: where it starts, the digest of its bytes
        # so far, and the number of bytes that are missing
        self._start = 0
        self._digest = hashlib.sha256()
        self._missing = 0

    def write(self, data: Any) -> int:
        """Take the next bytes of the file."""
        size = memoryview(data).nbytes
        if size and not self._missing and self._position in self._large:
            self._start = self._position
            self._digest = hashlib.sha256()
            self._missing = self._large[self._start].size
        unit = None
        if self._missing == size <= self._allowed:
            unit = _repeated_unit(data)
        if unit is not None:
            self.repeated[self._start] = unit
            self._missing = 0
            self._allowed -= size
        elif self._missing:
            self._digest.update(data)
            self._missing -= size
            if not self._missing:
                self._leave_out(self._digest.digest())
        else:
            self._allowed += self.rest.write(data)
        self._position += size
        return size

    def _leave_out(self, digest: bytes) -> None:
        """Drop the constant at ``_start``, which is complete.

        Of equal constants, only the first ``MOST_EQUAL`` are dropped.
        """
        if [*self.left_out.values()].count(digest) >= MOST_EQUAL:
            self._large[self._start].write_to(self.rest)
        else:
            self.left_out[self._start] = digest
        self._allowed += self._large[self._start].size


def _repeated_unit(data: Any) -> bytes | None:
    """Return the 4 bytes that ``data`` repeats, or None."""
    all_bytes = memoryview(data).cast("B")
    unit = bytes(all_bytes[:UNIT])
    # most constants differ in their first elements, so the whole is rarely compared
    if not unit or len(all_bytes) % UNIT or all_bytes[UNIT : 2 * UNIT] != unit:
        return None
    return unit if all_bytes == unit * (len(all_bytes) // UNIT) else None
