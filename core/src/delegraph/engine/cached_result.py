"""A compiled result as the bytes of an entry of a cache.

An entry is a magic, the SHA-256 of its key and of the rest, the size of a JSON header, the header, and bytes. Bytes of
a result that are a constant of the partition are not in the entry: whoever asks has them, and the key says that they
are equal. The digest finds damage and entries of other keys, not attackers.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from ..backend import Blob, DataEntry, NamedDataStoreOutput, PreprocessResult, TensorLayout
from ..errors import ContractViolation, FormatError
from ..exported.work import DTYPES, Form, Memory
from ..io.blob import stream
from ..io.weights import is_written, state_of

MAGIC = b"delegraph entry2"
_HEAD = struct.Struct("<16s32sQ")
_SHARED = 4096
"""Bytes from which on a piece of a result is looked for among the constants."""


def packed(key: str, header: Any, raw: Sequence[bytes]) -> bytes:
    """An entry: its header, which is JSON, and the bytes that follow it."""
    told = json.dumps(header).encode()
    rest = b"".join((len(told).to_bytes(8, "little"), told, *raw))
    return MAGIC + hashlib.sha256(key.encode() + rest).digest() + rest


def unpacked(key: str, data: bytes) -> tuple[Any, memoryview]:
    """Header and bytes of an entry. Raises FormatError for what is damaged, or is the entry of another key."""
    if len(data) < _HEAD.size or data[:16] != MAGIC or hashlib.sha256(key.encode() + data[48:]).digest() != data[16:48]:
        raise FormatError("format-invalid", "it is damaged, truncated or no entry")
    end = _HEAD.size + _HEAD.unpack_from(data)[2]
    try:
        return json.loads(data[_HEAD.size : end]), memoryview(data)[end:]
    except ValueError as e:
        raise nonsense(e) from e


def nonsense(why: Exception) -> FormatError:
    """The error for an entry that has the right digest, and that delegraph did not write."""
    return FormatError("format-invalid", f"it holds what no entry has: {type(why).__name__}: {why}")


def write_result(key: str, about: Any, result: PreprocessResult, form: Form) -> bytes:
    """The entry of a result for the partition of ``form``; ``about`` is JSON for whoever lists entries.

    Raises ContractViolation for a result that has no words in JSON.
    """
    places = sorted((m.place, m.size, k) for k, m in enumerate(form.memories) if m.place is not None)
    raw: list[bytes] = []

    def pieces(blob: Any) -> list[Any]:
        """A row for each piece of a blob: how many of the file's bytes, or which of a constant's."""
        rows: list[Any] = []

        def take(piece: memoryview) -> None:
            if shared := _shared(piece, places):
                rows.append(shared)
                return
            raw.append(bytes(piece))
            if rows and type(rows[-1]) is int:  # a file of many small pieces has few rows
                rows[-1] += piece.nbytes
            else:
                rows.append(piece.nbytes)

        stream(blob, take)
        return rows

    store = result.data_store_output
    fields = {k: v for k, v in vars(result).items() if k not in ("processed_bytes", "data_store_output")}
    blobs = [pieces(blob) for blob in (result.processed_bytes, *(store.buffers if store else ()))]
    named = store and [_entries(table) for table in (store.pte_data, *store.external_data.values())]
    return packed(key, [about, blobs, _plain(fields), store and list(store.external_data), named], raw)


def _shared(piece: memoryview, places: Sequence[tuple[Any, int, int]]) -> tuple[int, int, int] | None:
    """Which constant, from which byte on, how many: if the piece is memory of one."""
    if piece.nbytes < _SHARED:
        return None
    address = np.frombuffer(piece, np.uint8).ctypes.data
    for place, size, number in places:
        if place <= address and address + piece.nbytes <= place + size:
            return number, address - place, piece.nbytes
    return None


def _entries(table: dict[str, DataEntry]) -> Any:
    layouts = {key: entry.tensor_layout for key, entry in table.items()}
    told = {key: layout and [str(layout.dtype)[6:], list(layout.sizes)] for key, layout in layouts.items()}
    return [[key, entry.buffer_index, entry.alignment, told[key]] for key, entry in table.items()]


def _plain(value: Any) -> Any:
    """Python's own values as JSON, in their order; ContractViolation for any other."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return {"f": value.hex()}
    if isinstance(value, (list, tuple)):
        return {"t" if isinstance(value, tuple) else "l": [_plain(v) for v in value]}
    if isinstance(value, dict):
        return {"d": [[_plain(k), _plain(v)] for k, v in value.items()]}
    raise ContractViolation("contract-violation", f"its result holds {value!r:.80}, which has no words in JSON")


def _unplain(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    ((tag, value),) = given.items()
    if tag == "f":
        return float.fromhex(value)
    if tag == "d":
        return {_unplain(k): _unplain(v) for k, v in value}
    return (tuple if tag == "t" else list)(map(_unplain, value))


def read_result(key: str, data: bytes, form: Form) -> PreprocessResult:
    """The result in an entry, for the partition of ``form``. Raises FormatError unless it is one of that key."""
    header, rest = unpacked(key, data)
    try:
        _, blobs, fields, tags, named = header
        read = list(_blobs(blobs, rest, form))
        result = PreprocessResult(**_unplain(fields), processed_bytes=read[0])
        if named is not None:
            pte, *external = [{key: _entry(*row) for key, *row in table} for table in named]
            result.data_store_output = NamedDataStoreOutput(read[1:], pte, dict(zip(tags, external, strict=True)))
    except Exception as e:
        raise nonsense(e) from e
    return result


def _blobs(rows: Sequence[Any], rest: memoryview, form: Form) -> Iterator[bytes | Blob]:
    place = 0
    for blob in rows:
        pieces: list[Any] = []
        for row in blob:
            if isinstance(row, int):
                pieces.append(bytes(rest[place : place + row]))
                place += row
            else:
                number, first, size = row
                pieces.append((form.memories[number], first, size))
        shares = any(isinstance(piece, tuple) for piece in pieces)
        yield _Stored(pieces) if shares else b"".join(pieces)


def _entry(index: int, alignment: int, layout: Any) -> DataEntry:
    return DataEntry(index, alignment, layout and TensorLayout(DTYPES[layout[0]], tuple(layout[1])))


class _Stored:
    """A ``Blob`` of bytes of an entry and of constants, which are read where they are."""

    def __init__(self, pieces: Sequence[bytes | tuple[Memory, int, int]]) -> None:
        self._pieces = pieces
        tensors = {id(t): t for piece in pieces if isinstance(piece, tuple) for t in piece[0].tensors}
        self._states = [(tensor, state_of(tensor)) for tensor in tensors.values()]

    def __len__(self) -> int:
        return sum(piece[2] if isinstance(piece, tuple) else len(piece) for piece in self._pieces)

    def write_to(self, file: BinaryIO) -> None:
        """Append all bytes. Raises ContractViolation if somebody wrote a constant since."""
        for tensor, state in self._states:
            if is_written(tensor, state):
                text = f"a tensor of shape {list(tensor.shape)} was changed after the program was lowered"
                raise ContractViolation("contract-violation", text, hint="lower the model again")
        for piece in self._pieces:
            if isinstance(piece, bytes):
                file.write(piece)
            else:
                memory, first, size = piece
                file.write(next(memory.pieces())[first : first + size])
