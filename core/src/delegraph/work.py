"""Partitions, and what backends make of them, as bytes: what a cache keeps and what other processes get and send.

``write`` makes the ``Form`` of a program, ``read`` a program of its bytes; ``write_result`` and ``read_result`` do the
same for a ``PreprocessResult``, as an entry of a key. An entry is a magic, the SHA-256 of its key and of the rest, the
size of a JSON header, the header, and bytes. Bytes of a result that are a constant of the partition are not in the
entry: whoever asks has the partition's form. The digest finds damage and entries of other keys, not attackers.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from .backend import Blob, DataEntry, NamedDataStoreOutput, PreprocessResult, TensorLayout
from .errors import ContractViolation, FormatError
from .exported.work import DTYPES, Form, Memory, read, write
from .io.blob import stream
from .io.weights import is_written, state_of

__all__ = [
    "MAGIC",
    "Form",
    "Memory",
    "nonsense",
    "packed",
    "plain",
    "read",
    "read_result",
    "unpacked",
    "unplain",
    "write",
    "write_result",
]

MAGIC = b"delegraph entry2"
"""What entries begin with."""
_HEAD = struct.Struct("<16s32sQ")
_SHARED = 4096
"""Pieces of a result with this many bytes or more are compared with the memory of constants."""


def packed(key: str, header: Any, raw: Sequence[bytes]) -> bytes:
    """The bytes of an entry, from its header, which is JSON, and the bytes that follow the header."""
    encoded = json.dumps(header).encode()
    rest = b"".join((len(encoded).to_bytes(8, "little"), encoded, *raw))
    return MAGIC + hashlib.sha256(key.encode() + rest).digest() + rest


def unpacked(key: str, data: bytes) -> tuple[Any, memoryview]:
    """The header and the bytes of an entry. Raises FormatError if it is damaged, or has another key."""
    if len(data) < _HEAD.size or data[:16] != MAGIC or hashlib.sha256(key.encode() + data[48:]).digest() != data[16:48]:
        raise FormatError("format-invalid", "it is damaged, truncated or no entry")
    end = _HEAD.size + _HEAD.unpack_from(data)[2]
    try:
        return json.loads(data[_HEAD.size : end]), memoryview(data)[end:]
    except ValueError as e:
        raise nonsense(e) from e


def nonsense(why: Exception) -> FormatError:
    """The error for an entry with a right digest that delegraph cannot have written."""
    return FormatError("format-invalid", f"it holds what no entry has: {type(why).__name__}: {why}")


def write_result(key: str, about: Any, result: PreprocessResult, form: Form) -> bytes:
    """The entry of a result for the partition of ``form``. ``about``: JSON with facts for those who list entries.

    Raises ContractViolation for a result that JSON cannot express.
    """
    places = sorted((m.place, m.size, k) for k, m in enumerate(form.memories) if m.place is not None)
    raw: list[bytes] = []

    def pieces(blob: Any) -> list[Any]:
        """A row for each piece of a blob: how many of the entry's bytes it has, or what ``_shared`` returns."""
        rows: list[Any] = []

        def take(piece: memoryview) -> None:
            """Add a row for one piece; store its bytes unless a constant has them."""
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
    return packed(key, [about, blobs, plain(fields), store and list(store.external_data), named], raw)


def _shared(piece: memoryview, places: Sequence[tuple[Any, int, int]]) -> tuple[int, int, int] | None:
    """(number of the constant's memory, first byte, number of bytes), if the piece lies in one; else None.

    ``places``: address, size and number of each memory.
    """
    if piece.nbytes < _SHARED:
        return None
    address = np.frombuffer(piece, np.uint8).ctypes.data
    for place, size, number in places:
        if place <= address and address + piece.nbytes <= place + size:
            return number, address - place, piece.nbytes
    return None


def _entries(table: dict[str, DataEntry]) -> Any:
    """The entries of a table of named data as JSON."""
    layouts = {key: entry.tensor_layout for key, entry in table.items()}
    described = {key: layout and [str(layout.dtype)[6:], list(layout.sizes)] for key, layout in layouts.items()}
    return [[key, entry.buffer_index, entry.alignment, described[key]] for key, entry in table.items()]


def plain(value: Any) -> Any:
    """Plain Python values as JSON that keeps their types and order. Raises ContractViolation for any other value."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return {"f": value.hex()}
    if isinstance(value, (list, tuple)):
        return {"t" if isinstance(value, tuple) else "l": [plain(v) for v in value]}
    if isinstance(value, dict):
        return {"d": [[plain(k), plain(v)] for k, v in value.items()]}
    raise ContractViolation("contract-violation", f"its result holds {value!r:.80}, which has no words in JSON")


def unplain(given: Any) -> Any:
    """The inverse of ``plain``."""
    if not isinstance(given, dict):
        return given
    ((tag, value),) = given.items()
    if tag == "f":
        return float.fromhex(value)
    if tag == "d":
        return {unplain(k): unplain(v) for k, v in value}
    return (tuple if tag == "t" else list)(map(unplain, value))


def read_result(key: str, data: bytes, form: Form) -> PreprocessResult:
    """The result in an entry, for the partition of ``form``. Raises FormatError unless it is one of that key.

    Its fields may be of any type: whoever takes a plugin's result has to check them.
    """
    header, rest = unpacked(key, data)
    try:
        _, blobs, fields, tags, named = header
        read = list(_blobs(blobs, rest, form))
        result = PreprocessResult(**unplain(fields), processed_bytes=read[0])
        if named is not None:
            pte, *external = [{key: _entry(*row) for key, *row in table} for table in named]
            result.data_store_output = NamedDataStoreOutput(read[1:], pte, dict(zip(tags, external, strict=True)))
    except Exception as e:
        raise nonsense(e) from e
    return result


def _blobs(rows: Sequence[Any], rest: memoryview, form: Form) -> Iterator[bytes | Blob]:
    """The blobs of an entry. One that contains bytes of constants is a ``Blob`` that reads them in place."""
    place = 0
    for blob in rows:
        pieces: list[Any] = []
        for row in blob:
            number, first, size = (0, 0, row) if type(row) is int else row
            memory = None if type(row) is int else form.memories[number]
            end = len(rest) - place if memory is None else memory.size
            if min(number, first, size) < 0 or first + size > end:
                raise ValueError(f"a piece of {size} bytes from {first} on, where there are {end}")
            if memory is None:
                pieces.append(bytes(rest[place : place + size]))
                place += size
            else:
                pieces.append((memory, first, size))
        shares = any(isinstance(piece, tuple) for piece in pieces)
        yield _Stored(pieces) if shares else b"".join(pieces)


def _entry(index: int, alignment: int, layout: Any) -> DataEntry:
    """The entry of a table of named data, from its row."""
    return DataEntry(index, alignment, layout and TensorLayout(DTYPES[layout[0]], tuple(layout[1])))


class _Stored:
    """A ``Blob`` made of bytes of an entry and of constants, which are not copied."""

    def __init__(self, pieces: Sequence[bytes | tuple[Memory, int, int]]) -> None:
        self._pieces = pieces
        tensors = {id(t): t for piece in pieces if isinstance(piece, tuple) for t in piece[0].tensors}
        self._states = [(tensor, state_of(tensor)) for tensor in tensors.values()]

    def __len__(self) -> int:
        return sum(piece[2] if isinstance(piece, tuple) else len(piece) for piece in self._pieces)

    def write_to(self, file: BinaryIO) -> None:
        """Append all bytes to ``file``. Raises ContractViolation if a constant was written meanwhile."""
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
