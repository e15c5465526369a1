"""Serialize compiled results, for caches and for other processes.

``write_result`` converts a ``PreprocessResult`` to the bytes of an *entry*, which
belongs to a key. ``read_result`` converts back.

An entry consists of MAGIC, a SHA-256 digest, the size of a JSON header, the header, and
bytes. The digest covers the key and all bytes after it. It detects damage and entries
of other keys. It does not protect against attackers.

A result may contain constants of the partition. An entry leaves their bytes out,
because the reader has the partition, too.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from delegraph.backend import (
    Blob,
    DataEntry,
    NamedDataStoreOutput,
    PreprocessResult,
    TensorLayout,
)
from delegraph.errors import ContractViolation, FormatError
from delegraph.io.blob_pieces import stream
from delegraph_programs.tensor_bytes import is_written, state_of

from .forms import DTYPES, Form, Memory

MAGIC = b"delegraph entry2"
"""The first bytes of each entry."""
_HEAD = struct.Struct("<16s32sQ")
_SHARED = 4096
"""The least bytes of a piece that an entry leaves out because a constant has them."""


def key_of(kind: type, parts: Sequence[Any]) -> str:
    """Return the key of an entry: a hash of the class that computes it, and of
    ``parts``, which are values of JSON.
    """
    name = f"{kind.__module__}:{kind.__qualname__}"
    text = json.dumps([MAGIC.decode(), name, *parts])
    return hashlib.sha256(text.encode()).hexdigest()


def packed(key: str, header: Any, parts: Sequence[bytes]) -> bytes:
    """Return the bytes of an entry: ``header`` as JSON, then ``parts``."""
    encoded = json.dumps(header).encode()
    rest = b"".join((len(encoded).to_bytes(8, "little"), encoded, *parts))
    return MAGIC + hashlib.sha256(key.encode() + rest).digest() + rest


def unpacked(key: str, data: bytes) -> tuple[Any, memoryview]:
    """Return the header of an entry, and the bytes after it.

    Raises FormatError if the entry is damaged, or belongs to another key.
    """
    if len(data) < _HEAD.size:
        raise FormatError("format-invalid", "it is damaged, truncated or no entry")
    magic, digest, size = _HEAD.unpack_from(data)
    # the digest covers the key and all bytes after the digest
    wanted = hashlib.sha256(key.encode() + data[48:]).digest()
    if magic != MAGIC or digest != wanted:
        raise FormatError("format-invalid", "it is damaged, truncated or no entry")
    end = _HEAD.size + size
    try:
        return json.loads(data[_HEAD.size : end]), memoryview(data)[end:]
    except (ValueError, RecursionError) as e:
        raise invalid_entry(e) from e


def invalid_entry(why: Exception) -> FormatError:
    """Return the error for an entry with a right digest and an invalid content.

    ``why`` is the error of its reader.
    """
    return FormatError(
        "format-invalid", f"it is no valid entry: {type(why).__name__}: {why}"
    )


def write_result(key: str, about: Any, result: PreprocessResult, form: Form) -> bytes:
    """Return the entry for ``result``, compiled from the partition of ``form``.

    ``about`` is a value of JSON with facts for listings of the cache. Raises
    ContractViolation if ``result`` contains other values than plain Python values.
    """
    writer = _BlobWriter(form)
    fields = dict(vars(result))
    blob = fields.pop("processed_bytes")
    store = fields.pop("data_store_output")
    blobs = [writer.rows_of(blob)]
    if store is None:
        header = [about, blobs, plain(fields), None, None]
        return packed(key, header, writer.parts)

    blobs += [writer.rows_of(buffer) for buffer in store.buffers]
    # the named data of the program file, then of each external file
    tables = [_entries(store.pte_data)]
    tables += [_entries(table) for table in store.external_data.values()]
    header = [about, blobs, plain(fields), list(store.external_data), tables]
    return packed(key, header, writer.parts)


class _BlobWriter:
    """Writes blobs as rows, and collects the bytes that no constant has.

    ``parts``: these bytes, in pieces.
    """

    def __init__(self, form: Form) -> None:
        self.parts: list[bytes] = []
        self._form = form

    def rows_of(self, blob: Any) -> list[Any]:
        """Return rows for the pieces of a blob.

        A row is a number of bytes of the entry, or a place in a constant: the number of
        its memory, the first byte and the number of bytes.
        """
        rows: list[Any] = []

        def add(piece: memoryview) -> None:
            place = self._place_in_constant(piece)
            if place is not None:
                rows.append(place)
                return
            self.parts.append(bytes(piece))
            # one row for neighbouring pieces: many blobs have many small ones
            if rows and type(rows[-1]) is int:
                rows[-1] += piece.nbytes
            else:
                rows.append(piece.nbytes)

        stream(blob, add)
        return rows

    def _place_in_constant(self, piece: memoryview) -> list[int] | None:
        """Return the place of a large piece in the memory of a constant, or None."""
        if piece.nbytes < _SHARED:
            return None
        address = np.frombuffer(piece, np.uint8).ctypes.data
        for number, memory in enumerate(self._form.memories):
            if memory.address is None or address < memory.address:
                continue
            if address + piece.nbytes <= memory.address + memory.size:
                return [number, address - memory.address, piece.nbytes]
        return None


def _entries(table: dict[str, DataEntry]) -> list[Any]:
    """Return a table of named data as JSON.

    A row has the key, the index of the buffer, the alignment, and the layout or None.
    """
    rows = []
    for key, entry in table.items():
        layout: Any = entry.tensor_layout
        if layout is not None:
            dtype = str(layout.dtype).removeprefix("torch.")
            layout = [dtype, list(layout.sizes)]
        rows.append([key, entry.buffer_index, entry.alignment, layout])
    return rows


def plain(value: Any) -> Any:
    """Return ``value`` as JSON from which ``unplain`` restores it exactly, with types,
    order of keys, NaN and infinity.

    A float becomes ``{"f": hexadecimal digits}``, a tuple ``{"t": items}``, a list
    ``{"l": items}``, a dict ``{"d": pairs}``. Raises ContractViolation for anything but
    None, bool, int, float, str, list, tuple and dict.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return {"f": value.hex()}
    if isinstance(value, (list, tuple)):
        return {"t" if isinstance(value, tuple) else "l": [plain(v) for v in value]}
    if isinstance(value, dict):
        return {"d": [[plain(k), plain(v)] for k, v in value.items()]}
    raise ContractViolation(
        "contract-violation",
        f"its result contains {value!r:.80}, a {type(value).__name__}; results may"
        " contain None, bool, int, float, str, list, tuple and dict",
    )


def unplain(encoded: Any) -> Any:
    """Return the value that ``plain`` wrote."""
    if not isinstance(encoded, dict):
        return encoded
    ((tag, value),) = encoded.items()
    if tag == "f":
        return float.fromhex(value)
    if tag == "d":
        return {unplain(k): unplain(v) for k, v in value}
    items = [unplain(item) for item in value]
    return tuple(items) if tag == "t" else items


def read_result(key: str, data: bytes, form: Form) -> PreprocessResult:
    """Return the result in the entry ``data``, for the partition of ``form``.

    Raises FormatError if the entry is damaged or belongs to another key. The caller
    checks the types of the result's fields, as for each result of a plugin.
    """
    header, rest = unpacked(key, data)
    try:
        _, blobs, fields, external_names, tables = header  # see ``write_result``
        blob, *buffers = _blobs(blobs, rest, form)
        result = PreprocessResult(**unplain(fields), processed_bytes=blob)
        if tables is not None:
            pte, *external = [
                {key: _entry(*row) for key, *row in table} for table in tables
            ]
            external_data = dict(zip(external_names, external, strict=True))
            result.data_store_output = NamedDataStoreOutput(buffers, pte, external_data)
    except Exception as e:  # an invalid header may cause any error
        raise invalid_entry(e) from e
    return result


class _ConstantPiece(NamedTuple):
    """A piece of a blob in the memory of a constant."""

    memory: Memory
    first: int
    size: int


def _blobs(rows: Sequence[Any], rest: memoryview, form: Form) -> Iterator[bytes | Blob]:
    """Yield the blobs of an entry: bytes, or a Blob that reads parts from constants.

    ``rows`` has the rows of ``_BlobWriter`` for each blob. ``rest`` is the bytes after
    the header. Raises ValueError for a row beyond the end of ``rest`` or of its memory.
    """
    position = 0  # in ``rest``
    for blob in rows:
        pieces: list[bytes | _ConstantPiece] = []
        for row in blob:
            if type(row) is int:
                _check_piece(0, row, len(rest) - position)
                pieces.append(bytes(rest[position : position + row]))
                position += row
            else:
                number, first, size = row
                if number < 0:
                    raise ValueError(
                        f"the index of a constant's memory is negative: {number}"
                    )
                memory = form.memories[number]
                _check_piece(first, size, memory.size)
                pieces.append(_ConstantPiece(memory, first, size))
        if any(isinstance(piece, _ConstantPiece) for piece in pieces):
            yield _SharingBlob(pieces)
        else:
            yield b"".join(piece for piece in pieces if isinstance(piece, bytes))


def _check_piece(first: int, size: int, available: int) -> None:
    if min(first, size) < 0 or first + size > available:
        raise ValueError(
            f"a piece has {size} bytes from byte {first} on, but there are only"
            f" {available} bytes"
        )


def _entry(index: int, alignment: int, layout: Any) -> DataEntry:
    """Return the DataEntry for a row of ``_entries``."""
    if layout is None:
        return DataEntry(index, alignment, None)
    dtype, sizes = layout
    return DataEntry(index, alignment, TensorLayout(DTYPES[dtype], tuple(sizes)))


class _SharingBlob:
    """A Blob of bytes, and of pieces of constants that are not copied."""

    def __init__(self, pieces: Sequence[bytes | _ConstantPiece]) -> None:
        """Record the state of the constants, to detect later writes."""
        self._pieces = pieces
        tensors: dict[int, torch.Tensor] = {}
        for piece in pieces:
            if isinstance(piece, _ConstantPiece):
                tensors |= {id(tensor): tensor for tensor in piece.memory.tensors}
        self._states = [(tensor, state_of(tensor)) for tensor in tensors.values()]

    def __len__(self) -> int:
        size = 0
        for piece in self._pieces:
            size += piece.size if isinstance(piece, _ConstantPiece) else len(piece)
        return size

    def write_to(self, file: BinaryIO) -> None:
        """Append all bytes to ``file``.

        Raises ContractViolation if a constant was written since the entry was read.
        """
        for tensor, state in self._states:
            if is_written(tensor, state):
                raise ContractViolation(
                    "contract-violation",
                    f"a tensor of shape {list(tensor.shape)} was changed after the"
                    " program was lowered",
                    hint="lower the model again",
                )
        for piece in self._pieces:
            if isinstance(piece, bytes):
                file.write(piece)
            else:
                content = next(piece.memory.pieces())
                file.write(content[piece.first : piece.first + piece.size])
