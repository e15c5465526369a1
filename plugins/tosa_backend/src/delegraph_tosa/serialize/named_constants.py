"""Files without the elements of their large constants, which are named data: several
delegates share them.

    8 bytes "dlgrCUT2" | number of constants, uint32 | number of repeated ones, uint32 |
    for each constant: its place in the file, uint64; its size, uint64; the SHA-256 of
    its bytes | for each repeated one: its place, uint64; its size, uint64; the 4 bytes
    that it repeats | the rest of the file: its bytes, uint64, and these as zlib packs
    them

All numbers are little-endian, places ascend. Named data has the constants by ``key_of``
their SHA-256. Repeated ones are, as a rule, zero points that are all zero. Packed, the
rest is a third to a fifth: operators and tensors of a graph are much alike, and each
method of a program has its own.
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
MOST_PACKED = 100
"""How many bytes a packed one stands for at most, so that a small damaged file cannot
ask for a large one.
"""
LEAST = 1024
"""Bytes of the smallest constant that is left out of a file."""
MOST_EQUAL = 2
"""How many equal constants are left out of a file: an embedding that is tied to a layer
has its elements in two shapes.

Not more, so that a small damaged file cannot ask for a large multiple of the named
data.
"""
ALIGNMENT = 16
UNIT = 4
"""Bytes that a repeated constant repeats."""
_COUNT = struct.Struct("<I")
_SIZE = struct.Struct("<Q")
_BEGIN = len(MAGIC) + 2 * _COUNT.size
"""Where the rows of constants begin."""
_ROW = struct.Struct("<QQ32s")
_REPEATED = struct.Struct(f"<QQ{UNIT}s")


def key_of(digest: bytes) -> str:
    """The key of a constant's bytes among the named data of a program."""
    return f"tosa-constant-{digest.hex()}"


def split_constants(file: TosaFile) -> tuple[bytes, NamedDataStoreOutput]:
    """The file without its large constants, and these. Reads all constants once. Of
    equal ones, two are left out.
    """
    large = {
        constant.start: constant
        for constant in file.constants()
        if constant.size >= LEAST
    }
    kept = _Kept(large)
    file.write_to(kept)  # type: ignore[arg-type]
    store = NamedDataStore()
    rows = []
    for start, digest in kept.left_out.items():
        store.add_named_data(key_of(digest), large[start], ALIGNMENT)
        rows.append(_ROW.pack(start, large[start].size, digest))
    repeated = [
        _REPEATED.pack(start, large[start].size, unit)
        for start, unit in kept.repeated.items()
    ]
    rest = kept.rest.getvalue()
    packed = zlib.compress(rest)
    if len(rest) > MOST_PACKED * len(packed):
        packed = zlib.compress(rest, 0)
    counts = _COUNT.pack(len(rows)) + _COUNT.pack(len(repeated))
    content = b"".join([MAGIC, counts, *rows, *repeated, _SIZE.pack(len(rest)), packed])
    return content, store.get_named_data_store_output()


def join_constants(content: bytes, named_data: Mapping[str, bytes]) -> bytes:
    """The whole file again; what is no such file is returned as it is. Raises
    FormatError for a damaged one.
    """
    if not content.startswith(MAGIC):
        return content
    rows, repeated, kept = _parts(content)
    # a small blob must not ask for much more than there is to read
    if rows and max(Counter([row.digest for row in rows]).values()) > MOST_EQUAL:
        raise _damaged(f"a constant is left out more than {MOST_EQUAL} times")
    held = sum(len(named_data.get(key_of(row.digest), b"")) for row in rows)
    if sum(row.size for row in repeated) > held + len(kept):
        raise _damaged("most of it is repeated")
    whole = bytearray()
    position = 0
    left_out: list[_Row | _Repeated] = [*rows, *repeated]
    for row in sorted(left_out, key=attrgetter("start")):
        data = (
            row.unit * (row.size // UNIT)
            if isinstance(row, _Repeated)
            else named_data.get(key_of(row.digest))
        )
        before = row.start - len(whole)
        if (
            data is None
            or len(data) != row.size
            or not 0 <= before <= len(kept) - position
        ):
            raise _damaged(
                f"the constant at {row.start}, of {row.size} bytes, is not in the named"
                " data or out of place"
            )
        whole += kept[position : position + before]
        whole += data
        position += before
    return bytes(whole + kept[position:])


def beginning(content: bytes) -> bytes:
    """Where the flatbuffer begins in the first bytes of a file, with or without its
    constants; b"" if further behind.

    Nothing is checked, except that nothing is read which is not there.
    """
    if not content.startswith(MAGIC) or len(content) < _BEGIN:
        return content
    kept = content[_rest(content) :]
    try:
        return zlib.decompressobj().decompress(kept[_SIZE.size :], len(content))
    except zlib.error:
        return b""


class _Row(NamedTuple):
    start: int
    size: int
    digest: bytes


class _Repeated(NamedTuple):
    start: int
    size: int
    unit: bytes


def _rest(content: bytes) -> int:
    """Where the rest of the file begins, behind all rows. ``content`` has their
    numbers.
    """
    count: int = _COUNT.unpack_from(content, len(MAGIC) + _COUNT.size)[0]
    return _repeated(content) + count * _REPEATED.size


def _repeated(content: bytes) -> int:
    """Where the rows of repeated constants begin."""
    count: int = _COUNT.unpack_from(content, len(MAGIC))[0]
    return _BEGIN + count * _ROW.size


def _parts(content: bytes) -> tuple[list[_Row], list[_Repeated], bytes]:
    """The rows of a blob, and the rest of its file. Raises FormatError for a damaged
    one.
    """
    if len(content) < _BEGIN or len(content) < (end := _rest(content)):
        raise _damaged("the table of its constants does not end")
    middle = _repeated(content)
    rows = [_Row(*found) for found in _ROW.iter_unpack(content[_BEGIN:middle])]
    repeated = [
        _Repeated(*found) for found in _REPEATED.iter_unpack(content[middle:end])
    ]
    return rows, repeated, _unpacked(content[end:])


def _unpacked(kept: bytes) -> bytes:
    """The rest of a file. Raises FormatError for what zlib did not pack, and for more
    or less than is stated.
    """
    if len(kept) < _SIZE.size:
        raise _damaged("it ends before its graph")
    (size,) = _SIZE.unpack_from(kept)
    packed = kept[_SIZE.size :]
    if size > MOST_PACKED * len(packed):
        raise _damaged(f"{len(packed)} bytes are said to be {size}")
    unpacking = zlib.decompressobj()
    try:
        found = unpacking.decompress(packed, size + 1)
    except zlib.error as e:
        raise _damaged(f"its graph cannot be unpacked: {e}") from e
    if len(found) != size or not unpacking.eof or unpacking.unused_data:
        raise _damaged(f"its graph is not of the {size} bytes that are stated")
    return found


def _damaged(why: str) -> FormatError:
    return FormatError(
        "format-invalid",
        f"a TOSA file whose constants are named data is damaged: {why}",
    )


class _Kept(io.RawIOBase):
    """Keeps what is written to it but for large constants, of which ``left_out`` has
    the places and digests.

    ``large``: place -> the constant there. It may come in pieces. One that comes whole
    and repeats the same bytes is in ``repeated``, as long as these are fewer than all
    others.
    """

    def __init__(self, large: Mapping[int, Any]) -> None:
        self.rest = io.BytesIO()
        self.left_out = dict[int, bytes]()
        self.repeated = dict[int, bytes]()
        self._allowed = 0
        """How many bytes may still be repeated."""
        self._large = large
        self._position = 0
        # of the constant that is being written
        self._place = 0
        self._digest = hashlib.sha256()
        self._missing = 0
        """How many of its bytes have not come yet."""

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        if size and not self._missing and self._position in self._large:
            self._place = self._position
            self._digest = hashlib.sha256()
            self._missing = self._large[self._place].size
        if self._missing == size <= self._allowed and (unit := _unit(data)) is not None:
            self.repeated[self._place], self._missing = unit, 0
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
        """The constant at ``_place`` has come. Of equal ones, the first ``MOST_EQUAL``
        are left out.
        """
        if [*self.left_out.values()].count(digest) >= MOST_EQUAL:
            self._large[self._place].write_to(self.rest)
        else:
            self.left_out[self._place] = digest
        self._allowed += self._large[self._place].size


def _unit(data: Any) -> bytes | None:
    """The bytes that ``data`` repeats; None if it repeats none, or is too short for
    that.
    """
    found = memoryview(data).cast("B")
    unit = bytes(found[:UNIT])
    # most constants differ in their first elements, and are not looked at any further
    if not unit or len(found) % UNIT or found[UNIT : 2 * UNIT] != unit:
        return None
    return unit if found == unit * (len(found) // UNIT) else None
