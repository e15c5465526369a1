"""Serializes compiled results, for caches and for other processes.

``write_result`` converts a ``PreprocessResult`` to the bytes of an *entry*, which
belongs to a key, and ``read_result`` converts back.

An entry consists of MAGIC, the SHA-256 digest of the key and of all that follows, the
size of a JSON header, the header, and bytes. Bytes of the result that lie in the memory
of a constant of the partition are left out, because the reader has the partition's
form. The digest detects damage and entries of other keys; it does not protect against
attackers.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
from delegraph.backend import (
    Blob,
    DataEntry,
    NamedDataStoreOutput,
    PreprocessResult,
    TensorLayout,
)
from delegraph.errors import ContractViolation, FormatError
from delegraph.io.blob import stream
from delegraph_programs.tensor_memory import is_written, state_of

from .forms import DTYPES, Form, Memory

MAGIC = b"delegraph entry2"
"""The first bytes of each entry."""
_HEAD = struct.Struct("<16s32sQ")
_SHARED = 4096
"""The least number of bytes of a piece that is left out of the entry if it lies in the
memory of a constant.
"""


def key_of(kind: type, parts: Sequence[Any]) -> str:
    """The key of an entry: a hash of ``parts``, values that JSON can express, and of
    the class that computes it.
    """
    name = f"{kind.__module__}:{kind.__qualname__}"
    return hashlib.sha256(
        json.dumps([MAGIC.decode(), name, *parts]).encode()
    ).hexdigest()


def packed(key: str, header: Any, raw: Sequence[bytes]) -> bytes:
    """The bytes of an entry for ``key``.

    ``header``: a JSON value; ``raw``: the bytes that follow it, in pieces.
    """
    encoded = json.dumps(header).encode()
    rest = b"".join((len(encoded).to_bytes(8, "little"), encoded, *raw))
    return MAGIC + hashlib.sha256(key.encode() + rest).digest() + rest


def unpacked(key: str, data: bytes) -> tuple[Any, memoryview]:
    """(header, bytes after it) of an entry.

    Raises FormatError if it is damaged, or belongs to another key.
    """
    # bytes 0 to 15 are MAGIC, 16 to 47 the digest of the key and of all that follows
    # (see ``packed``)
    if (
        len(data) < _HEAD.size
        or data[:16] != MAGIC
        or hashlib.sha256(key.encode() + data[48:]).digest() != data[16:48]
    ):
        raise FormatError("format-invalid", "it is damaged, truncated or no entry")
    end = _HEAD.size + _HEAD.unpack_from(data)[2]
    try:
        return json.loads(data[_HEAD.size : end]), memoryview(data)[end:]
    except (ValueError, RecursionError) as e:
        raise nonsense(e) from e


def nonsense(why: Exception) -> FormatError:
    """The error for an entry whose digest is right but whose content is invalid;
    ``why``: the error of its reader.
    """
    return FormatError(
        "format-invalid", f"it is no valid entry: {type(why).__name__}: {why}"
    )


def write_result(key: str, about: Any, result: PreprocessResult, form: Form) -> bytes:
    """The bytes of the entry for ``result``, which a backend compiled from the
    partition of ``form``.

    ``about``: a JSON value with facts for listings of the cache. Raises
    ContractViolation if ``result`` has a value that is no plain Python value.
    """
    # (address, size, number) of each memory of the partition's constants that has an
    # address
    memories = sorted(
        (m.place, m.size, k) for k, m in enumerate(form.memories) if m.place is not None
    )
    raw: list[bytes] = []  # the bytes of the entry, in pieces

    def rows_of(blob: Any) -> list[Any]:
        """A row for each piece of a blob: how many bytes of the entry it is, or its
        place (``_find_in_memories``).
        """
        rows: list[Any] = []

        def take(piece: memoryview) -> None:
            """Add a row for ``piece``, and its bytes to ``raw`` unless a constant has
            them.
            """
            if shared := _find_in_memories(piece, memories):
                rows.append(shared)
                return
            raw.append(bytes(piece))
            # one row for neighbouring pieces: many blobs have many small ones
            if rows and type(rows[-1]) is int:
                rows[-1] += piece.nbytes
            else:
                rows.append(piece.nbytes)

        stream(blob, take)
        return rows

    store = result.data_store_output
    fields = {
        k: v
        for k, v in vars(result).items()
        if k not in ("processed_bytes", "data_store_output")
    }
    blobs = [
        rows_of(blob)
        for blob in (result.processed_bytes, *(store.buffers if store else ()))
    ]
    # the named data of the program file, then that of each external file; None without
    # named data
    tables = store and [
        _entries(table) for table in (store.pte_data, *store.external_data.values())
    ]
    return packed(
        key,
        [about, blobs, plain(fields), store and list(store.external_data), tables],
        raw,
    )


def _find_in_memories(
    piece: memoryview, memories: Sequence[tuple[Any, int, int]]
) -> tuple[int, int, int] | None:
    """(number of the memory that contains ``piece``, first byte in it, number of
    bytes); None if no memory does.

    ``memories``: (address, size, number) of each memory of constants. None also for
    pieces of less than _SHARED bytes.
    """
    if piece.nbytes < _SHARED:
        return None
    address = np.frombuffer(piece, np.uint8).ctypes.data
    for start, size, number in memories:
        if start <= address and address + piece.nbytes <= start + size:
            return number, address - start, piece.nbytes
    return None


def _entries(table: dict[str, DataEntry]) -> Any:
    """A table of named data as JSON: a row ``[key, buffer index, alignment, layout or
    None]`` for each entry.
    """
    layouts = {key: entry.tensor_layout for key, entry in table.items()}
    # "torch.float32" becomes "float32"
    described = {
        key: layout and [str(layout.dtype)[6:], list(layout.sizes)]
        for key, layout in layouts.items()
    }
    return [
        [key, entry.buffer_index, entry.alignment, described[key]]
        for key, entry in table.items()
    ]


def plain(value: Any) -> Any:
    """``value`` as JSON from which ``unplain`` restores it exactly, with types, order
    of keys, NaN and infinity.

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
        f"its result holds {value!r:.80}, which has no words in JSON",
    )


def unplain(encoded: Any) -> Any:
    """The inverse of ``plain``."""
    if not isinstance(encoded, dict):
        return encoded
    ((tag, value),) = encoded.items()
    if tag == "f":
        return float.fromhex(value)
    if tag == "d":
        return {unplain(k): unplain(v) for k, v in value}
    return (tuple if tag == "t" else list)(map(unplain, value))


def read_result(key: str, data: bytes, form: Form) -> PreprocessResult:
    """The result in the entry ``data``, for the partition of ``form``.

    Raises FormatError if the entry is damaged or belongs to another key. The types of
    the result's fields are not checked; the caller checks them as for each result of a
    plugin.
    """
    header, rest = unpacked(key, data)
    try:
        # as ``write_result`` wrote them: facts for listings of the cache, rows of each
        # blob, fields of the result, names of the external files, and tables of named
        # data (of the program file, then of each external file)
        _, blobs, fields, tags, tables = header
        blob, *buffers = _blobs(blobs, rest, form)
        result = PreprocessResult(**unplain(fields), processed_bytes=blob)
        if tables is not None:
            pte, *external = [
                {key: _entry(*row) for key, *row in table} for table in tables
            ]
            result.data_store_output = NamedDataStoreOutput(
                buffers, pte, dict(zip(tags, external, strict=True))
            )
    except Exception as e:  # whatever a header with other content leads to
        raise nonsense(e) from e
    return result


def _blobs(rows: Sequence[Any], rest: memoryview, form: Form) -> Iterator[bytes | Blob]:
    """The blobs of an entry, as bytes, or as a Blob if a part of them is read from
    constants.

    ``rows``: for each blob, the rows that ``write_result`` wrote: a number of bytes,
    which are the next ones in ``rest``, or (number of a memory of ``form``, first byte,
    number of bytes). ``rest``: the bytes of the entry behind its header. Raises
    ValueError for a row that reaches beyond the end of ``rest`` or of its memory.
    """
    position = 0  # in ``rest``, of the next bytes
    for blob in rows:
        pieces: list[Any] = []
        for row in blob:
            number, first, size = (0, 0, row) if type(row) is int else row
            memory = None if type(row) is int else form.memories[number]
            available = len(rest) - position if memory is None else memory.size
            if min(number, first, size) < 0 or first + size > available:
                raise ValueError(
                    f"a piece of {size} bytes from {first} on, where there are"
                    f" {available}"
                )
            if memory is None:
                pieces.append(bytes(rest[position : position + size]))
                position += size
            else:
                pieces.append((memory, first, size))
        shares = any(isinstance(piece, tuple) for piece in pieces)
        yield _Stored(pieces) if shares else b"".join(pieces)


def _entry(index: int, alignment: int, layout: Any) -> DataEntry:
    """The DataEntry for a row that ``_entries`` wrote."""
    return DataEntry(
        index, alignment, layout and TensorLayout(DTYPES[layout[0]], tuple(layout[1]))
    )


class _Stored:
    """A Blob whose pieces are bytes of an entry, or (memory, first byte, number of
    bytes) of a constant, not copied.
    """

    def __init__(self, pieces: Sequence[bytes | tuple[Memory, int, int]]) -> None:
        """Keep the pieces, and what shows later whether a tensor of theirs was written."""
        self._pieces = pieces
        tensors = {
            id(t): t
            for piece in pieces
            if isinstance(piece, tuple)
            for t in piece[0].tensors
        }
        self._states = [(tensor, state_of(tensor)) for tensor in tensors.values()]

    def __len__(self) -> int:
        return sum(
            piece[2] if isinstance(piece, tuple) else len(piece)
            for piece in self._pieces
        )

    def write_to(self, file: BinaryIO) -> None:
        """Append all bytes to ``file``.

        Raises ContractViolation if a constant was written since the entry was read.
        """
        for tensor, state in self._states:
            if is_written(tensor, state):
                text = (
                    f"a tensor of shape {list(tensor.shape)} was changed after the"
                    " program was lowered"
                )
                raise ContractViolation(
                    "contract-violation", text, hint="lower the model again"
                )
        for piece in self._pieces:
            if isinstance(piece, bytes):
                file.write(piece)
            else:
                memory, first, size = piece
                file.write(next(memory.pieces())[first : first + size])
