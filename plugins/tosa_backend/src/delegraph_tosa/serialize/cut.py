"""Files without the elements of their large constants, which are named data: several delegates share them.

    8 bytes "dlgrCUT1" | number of constants, uint32 | for each: its place in the file, uint64; its size, uint64; the
    SHA-256 of its bytes | the file, from which they are left out

All numbers are little-endian, places ascend. Named data has the constants by ``key_of`` their SHA-256.
"""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from delegraph.backend import NamedDataStore, NamedDataStoreOutput
from delegraph.errors import FormatError

from .writer import Constant, TosaFile

MAGIC = b"dlgrCUT1"
LEAST = 4096
"""Bytes of the smallest constant that is left out of a file."""
ALIGNMENT = 16
_COUNT, _ROW = struct.Struct("<I"), struct.Struct("<QQ32s")


def key_of(digest: bytes) -> str:
    """The key of a constant's bytes among the named data of a program."""
    return f"tosa-constant-{digest.hex()}"


def cut(file: TosaFile) -> tuple[bytes, NamedDataStoreOutput]:
    """The file without its large constants, and these. Reads all constants once."""
    large = [constant for constant in file.constants() if constant.size >= LEAST]
    kept = _Kept(large)
    file.write_to(kept)  # type: ignore[arg-type]
    store, digests = NamedDataStore(), [digest.digest() for digest in kept.digests]
    for constant, digest in zip(large, digests, strict=True):
        store.add_named_data(key_of(digest), constant, ALIGNMENT)
    rows = [_ROW.pack(constant.start, constant.size, digest) for constant, digest in zip(large, digests, strict=True)]
    content = b"".join([MAGIC, _COUNT.pack(len(rows)), *rows, kept.rest.getvalue()])
    return content, store.get_named_data_store_output()


def joined(content: bytes, named_data: Mapping[str, bytes]) -> bytes:
    """The whole file again; what is no such file is returned as it is. Raises FormatError for a damaged one."""
    if not content.startswith(MAGIC):
        return content
    whole, position = bytearray(), len(MAGIC) + _COUNT.size
    rows = list(_rows(content))
    position += _ROW.size * len(rows)
    for row in rows:
        data = named_data.get(key_of(row.digest))
        before = row.start - len(whole)
        if data is None or len(data) != row.size or not 0 <= before <= len(content) - position:
            raise _damaged(
                f"the constant at {row.start}, of {row.size} bytes, is not in the named data or out of place"
            )
        whole += content[position : position + before]
        whole += data
        position += before
    return bytes(whole + content[position:])


class _Row(NamedTuple):
    start: int
    size: int
    digest: bytes


def _rows(content: bytes) -> Iterator[_Row]:
    try:
        (count,) = _COUNT.unpack_from(content, len(MAGIC))
        for k in range(count):
            yield _Row(*_ROW.unpack_from(content, len(MAGIC) + _COUNT.size + k * _ROW.size))
    except struct.error as e:
        raise _damaged("the table of its constants does not end") from e


def _damaged(why: str) -> FormatError:
    return FormatError("format-invalid", f"a TOSA file whose constants are named data is damaged: {why}")


class _Kept(io.RawIOBase):
    """Keeps what is written to it but for constants, of which it keeps the digests."""

    def __init__(self, left_out: Sequence[Constant]) -> None:
        self.rest = io.BytesIO()
        self.digests = [hashlib.sha256() for _ in left_out]
        self._starts = {constant.start: k for k, constant in enumerate(left_out)}
        self._position = 0

    def write(self, data: Any) -> int:
        """A constant comes in one piece."""
        size = memoryview(data).nbytes
        place = self._starts.get(self._position) if size >= LEAST else None
        if place is None:
            self.rest.write(data)
        else:
            self.digests[place].update(data)
        self._position += size
        return size
