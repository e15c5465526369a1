"""Compiled partitions in a folder, by all that they were compiled from: what is there is not compiled again.

One file an entry: a magic, the SHA-256 of the rest, the size of a JSON header, the header, and bytes. Bytes of a result
that are a constant of the partition are not in the file: whoever asks has them, and the key says that they are equal.
An entry that is damaged is a miss and a note, never an error. The digest finds damage, not attackers.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from ..backend import BackendDetails, Blob, CompileSpec, DataEntry, NamedDataStoreOutput, PreprocessResult, TensorLayout
from ..errors import ContractViolation, DelegraphError, FormatError, OptionError
from ..exported.work import DTYPES, Form, Memory
from ..io.atomic_write import write_whole
from ..io.blob import stream
from ..io.weights import is_written, state_of
from ..report.facts import pluralize

_MAGIC = b"delegraph entry1"
_HEAD = struct.Struct("<16s32sQ")
_SHARED = 4096
"""Bytes from which on a piece of a result is looked for among the constants."""
_LIMIT = 10 << 30
"""Bytes of a folder, beyond which the entries that were not used for longest go."""


class Cache:
    """A folder of entries; ``notes`` is what a lowering that uses it has to tell of it."""

    def __init__(self, folder: str | os.PathLike[str], limit: int = _LIMIT) -> None:
        self.folder, self._limit = Path(folder), limit
        self._said: dict[str, None] = {}
        self.found, self.stored = [list[str]() for _ in range(2)]  # keys: lists, as threads append to them
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self.folder.stat()
        except OSError as e:
            raise _unusable(self.folder, e.strerror or str(e)) from e
        if os.name == "posix" and (status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
            raise _unusable(self.folder, "others own it or can write to it, and what they write would be run")

    def say(self, text: str) -> None:
        """Note something once."""
        self._said.setdefault(text)

    @property
    def notes(self) -> list[str]:
        """What is to be told of the lowering."""
        counts = f"{pluralize(len(self.found), 'partition')} found, {len(self.stored)} stored"
        return [f"cache {self.folder}: {counts}", *self._said]

    def get(self, key: str, form: Form) -> PreprocessResult | None:
        """The result of that key for the partition of ``form``, with the handles of the canonical program."""
        path = self._path(key)
        try:
            data = path.read_bytes()
            os.utime(path)
        except FileNotFoundError:
            return None
        except OSError as e:
            self.say(f"cache entry {path.name} could not be read: {e.strerror}")
            return None
        try:
            result = _decoded(data, form)
        except FormatError as e:
            self.say(f"cache entry {path.name} is not used: {e.message}")
            return None
        self.found.append(key)
        return result

    def put(self, key: str, form: Form, result: PreprocessResult) -> None:
        """Store a result. What cannot be stored is noted."""
        try:
            write_whole(self._path(key), _encoded(result, form))
            self._make_room()
        except (DelegraphError, OSError) as e:
            self.say(f"a partition could not be stored in the cache: {e}")
            return
        self.stored.append(key)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.entry"

    def _make_room(self) -> None:
        """Remove the entries that were used least recently, down to the limit; others may do the same meanwhile."""
        known = []
        for path in self.folder.glob("*.entry"):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            known.append((status.st_mtime_ns, status.st_size, path))
        size = sum(size for _, size, _ in known)
        for _, freed, path in sorted(known):
            if size <= self._limit:
                break
            path.unlink(missing_ok=True)
            size -= freed


def _unusable(folder: Path, why: str) -> OptionError:
    text = f"the folder {folder} cannot be a cache: {why}"
    return OptionError("option-invalid", text, hint="name a folder of your own, with the mode 0700; a new one gets it")


def key_of(
    form: Form, backend: type[BackendDetails], specs: Sequence[CompileSpec], producer: tuple[str, str], fingerprint: str
) -> str:
    """The key of a compiled partition: a hash of all that the backend may have computed it from."""
    told = [(spec.key, spec.value.hex()) for spec in specs]
    code = [_sources(module.partition(".")[0]) for module in (__name__, backend.__module__)]
    name = f"{backend.__module__}:{backend.__qualname__}"
    named = form.names if backend.keeps_names else None
    parts = [_MAGIC.decode(), form.key, named, name, told, producer, code, torch.__version__, fingerprint]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@cache
def _sources(package: str) -> str:
    """A hash of a package's Python files: of one that is being worked on, the version says little."""
    module = sys.modules[package]
    folders = sorted(map(Path, getattr(module, "__path__", ())))
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    files = files or [Path(given) for given in [getattr(module, "__file__", None)] if given]
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _encoded(result: PreprocessResult, form: Form) -> bytes:
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
    header = json.dumps([blobs, _plain(fields), store and list(store.external_data), named]).encode()
    rest = b"".join((len(header).to_bytes(8, "little"), header, *raw))
    return _MAGIC + hashlib.sha256(rest).digest() + rest


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


def _decoded(data: bytes, form: Form) -> PreprocessResult:
    if len(data) < _HEAD.size or data[:16] != _MAGIC or hashlib.sha256(data[48:]).digest() != data[16:48]:
        raise FormatError("format-invalid", "it is damaged, truncated or no entry")
    try:
        end = _HEAD.size + _HEAD.unpack_from(data)[2]
        blobs, fields, tags, named = json.loads(data[_HEAD.size : end])
        read = list(_blobs(blobs, memoryview(data)[end:], form))
        result = PreprocessResult(**_unplain(fields), processed_bytes=read[0])
        if named is not None:
            pte, *external = [{key: _entry(*row) for key, *row in table} for table in named]
            result.data_store_output = NamedDataStoreOutput(read[1:], pte, dict(zip(tags, external, strict=True)))
    except Exception as e:  # it has the right digest and is nonsense: somebody else wrote it
        raise FormatError("format-invalid", f"it holds what no entry has: {type(e).__name__}: {e}") from e
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
