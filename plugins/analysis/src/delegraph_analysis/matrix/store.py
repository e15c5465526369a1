"""Keep the rows of a matrix, and the files of its cells, in a folder.

Several processes may add to it at once, and may be killed while they do.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import json
import os
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from delegraph.errors import InputError, WriteError
from delegraph.io.atomic_write import write_whole
from delegraph.io.blob_pieces import Blob, join

if sys.platform != "win32":  # on Windows, stores are only read
    import fcntl

Row = dict[str, Any]
SCHEMA = "delegraph.matrix-row/1"
ROWS = "rows.jsonl"
ARTIFACTS = "artifacts"
_MARK = "store-id"


class Store:
    """A folder of rows and files.

    Each line of ``rows.jsonl`` is a row; the last one of a cell counts. Files are in
    ``artifacts/``, named by their SHA-256. ``store-id`` has a random text, see
    ``address``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create(self) -> None:
        """Make the folder. Raises WriteError."""
        try:
            (self.folder / ARTIFACTS).mkdir(parents=True, exist_ok=True)
            (self.folder / ROWS).touch()
            with (
                contextlib.suppress(FileExistsError),
                (self.folder / _MARK).open("x") as file,
            ):
                file.write(secrets.token_hex(16))
        except OSError as e:
            raise WriteError(
                "write-failed", f"{self.folder} cannot be a store: {e.strerror or e}"
            ) from e

    def exists(self) -> bool:
        return (self.folder / ROWS).exists()

    def address(self) -> dict[str, str]:
        """Return the path of the folder, and the random text in its ``store-id``.

        By this text, a process on another machine finds out whether it sees this folder
        or another one of that path. Raises WriteError if the folder is no store.
        """
        try:
            return {
                "folder": str(self.folder.resolve()),
                "mark": (self.folder / _MARK).read_text(),
            }
        except OSError as e:
            raise WriteError(
                "write-failed",
                f"the store {self.folder} cannot be read: {e.strerror or e}",
            ) from e

    def rows(self) -> list[Row]:
        """Return the last row of each cell: see ``read_rows``."""
        return read_rows(self.folder / ROWS)

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row: all of it, or nothing.

        If a killed process left half a line, the row begins a new line. Raises
        WriteError.
        """
        line = json.dumps(row, ensure_ascii=True, allow_nan=False).encode() + b"\n"
        try:
            with (self.folder / ROWS).open("a+b", buffering=0) as file:
                # a single write in append mode is atomic on a local disk; network disks
                # need the lock
                fcntl.lockf(file, fcntl.LOCK_EX)
                size = os.fstat(file.fileno()).st_size
                torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
                if torn:
                    line = b"\n" + line
                try:
                    if file.write(line) < len(line):
                        raise OSError(errno.ENOSPC, "no space left on device")
                except OSError:
                    os.ftruncate(file.fileno(), size)
                    raise
                os.fsync(file.fileno())
        except OSError as e:
            raise WriteError(
                "write-failed", f"cannot add to {self.folder / ROWS}: {e.strerror or e}"
            ) from e

    def keep(self, content: bytes | Blob, suffix: str) -> str:
        """Write a file and return its path in the store. Raises WriteError."""
        name = name_of(content, suffix)
        if not (self.folder / name).exists():
            write_whole(self.folder / name, content)
        return name

    def join(self, others: Iterable[Store]) -> int:
        """Add the rows of other stores, with their files; return how many were added.

        If both stores have a row of a cell, the other one is added only if the cell
        failed here and succeeded there.
        """
        self.create()
        known = {row["cell"]: row for row in self.rows()}
        added = 0
        for other in others:
            for row in other.rows():
                mine = known.get(row["cell"])
                if mine is not None and (
                    mine["error"] is None or row["error"] is not None
                ):
                    continue
                for name in files_of(row):
                    if not (self.folder / name).exists():
                        write_whole(self.folder / name, other.content(name))
                self.append(row)
                known[row["cell"]] = row
                added += 1
        return added

    def content(self, name: str) -> bytes:
        """Return the content of a file of the store.

        Raises InputError if it is missing, or its hash is not the one in its name.
        """
        try:
            content = (self.folder / name).read_bytes()
        except OSError as e:
            raise InputError(
                "input-invalid",
                f"{self.folder / name} cannot be read: {e.strerror or e}",
            ) from e
        if hashlib.sha256(content).hexdigest() != Path(name).name.partition(".")[0]:
            raise InputError(
                "input-invalid",
                f"{self.folder / name} is damaged: its content has another hash",
            )
        return content


class Parcel:
    """Files for a store that this machine does not see; they return with the answer."""

    def __init__(self) -> None:
        self.contents: dict[str, str] = {}

    def keep(self, content: bytes | Blob, suffix: str) -> str:
        """Keep a file, and return its path in the store, as ``Store.keep`` does."""
        name = name_of(content, suffix)
        data = content if isinstance(content, bytes) else join(content)
        self.contents[name] = base64.b64encode(data).decode()
        return name


def place_for(address: Mapping[str, str]) -> Store | Parcel:
    """Return the store at an address (see ``Store.address``) if this machine sees it.

    Otherwise, return a Parcel.
    """
    folder = Path(address["folder"])
    try:
        is_same = (folder / _MARK).read_text() == address["mark"]
    except OSError:
        is_same = False
    return Store(folder) if is_same else Parcel()


def name_of(content: bytes | Blob, suffix: str) -> str:
    """Return the path of a file in a store: it has the hash of the content."""
    digest = hashlib.sha256(content) if isinstance(content, bytes) else _digest(content)
    return f"{ARTIFACTS}/{digest.hexdigest()}{suffix}"


_BEGINNING = f'{{"schema": "{SCHEMA}"'.encode()
"""The beginning of each row's line; shows that half a line was a row."""


def read_rows(path: Path) -> list[Row]:
    """Return the last row of each cell in a file of rows, or in its folder.

    A line without an end, from a killed process or a full disk, is left out, and its
    cell is done again. Raises InputError for other files.
    """
    path = path / ROWS if path.is_dir() else path
    try:
        content = path.read_bytes()
    except OSError as e:
        hint = "make a store: delegraph matrix MODEL --backends NAME --store DIR"
        raise InputError(
            "input-invalid", f"{path} cannot be read: {e.strerror or e}", hint=hint
        ) from e
    found: dict[str, Row] = {}
    for number, line in enumerate(content.split(b"\n"), start=1):
        is_torn = False
        try:
            row = json.loads(line, parse_constant=_refuse)
        except (ValueError, RecursionError):
            is_torn = line.startswith(_BEGINNING[: len(line)])  # also an empty one
            row = None
        if is_row(row):
            found[row["cell"]] = row
        elif not is_torn:
            raise InputError(
                "input-invalid",
                f"line {number} of {path} is not a row that delegraph matrix wrote",
            )
    return list(found.values())


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not valid in JSON")


def is_row(row: Any) -> bool:
    """Return whether a value has the entries of a row, and names only files of a store."""
    if not isinstance(row, dict) or row.get("schema") != SCHEMA:
        return False
    if not _ENTRIES <= row.keys():
        return False
    try:
        return all(map(_is_artifact, files_of(row)))
    except (AttributeError, TypeError):
        return False


_ENTRIES = frozenset(
    """
    cell name model target quantize operators delegated delegates bytes not_run stage backends causes methods files
    error settings versions measured
    """.split()
)
"""Entries that tables, pages and comparisons read.

docs/schema.json has all that a row has.
"""


def _is_artifact(name: Any) -> bool:
    """Return whether a path has the form ``artifacts/SHA-256.SUFFIX``.

    Rows may come from anywhere, and the files that they name are read and linked to: so
    any other path, such as ``../file``, is refused.
    """
    folder, _, rest = str(name).partition("/")
    digest, _, suffix = rest.partition(".")
    has_digest = len(digest) == 64 and all(c in "0123456789abcdef" for c in digest)
    has_suffix = suffix.replace(".", "").replace("_", "").isalnum()
    return folder == ARTIFACTS and has_digest and has_suffix


def files_of(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of a row's files in the store."""
    names = [row["measured"].get("report"), row["measured"].get("page")]
    for entry in row["files"]:
        names += [entry.get("path"), *(entry.get("others") or {}).values()]
    yield from filter(None, names)


class _Hash:
    """A file-like object that hashes the bytes written to it."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return len(data)


def _digest(content: Blob) -> Any:
    """Return the hash of a Blob, without its whole content in memory."""
    into: Any = _Hash()
    content.write_to(into)
    return into.digest
