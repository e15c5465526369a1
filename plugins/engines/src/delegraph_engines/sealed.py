"""Sealed blobs: a file of an engine's own format, and behind it what its caller has to
know, with a digest of both.

Most formats let readers skip what stands behind a file, so that the engine's own tools
read a sealed one as well. The trailer is JSON, the SHA-256 of file and JSON, the length
of the JSON (8 bytes, little endian) and a mark. The digest finds damage before an
engine that looks for none reads the file; it does not find attackers.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from delegraph.errors import FormatError

_CHUNK = 1 << 20


def seal(path: Path, mark: bytes, told: Any) -> bytes:
    """Append to the file at ``path`` its trailer, with ``told`` as JSON; returns the
    sealed blob.

    ``mark``: tells blobs of one kind from others, and ends with a version. The file is
    in memory once.
    """
    text = json.dumps(told).encode()
    digest = hashlib.sha256()
    with path.open("rb+") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
        digest.update(text)
        file.write(
            b"".join([text, digest.digest(), len(text).to_bytes(8, "little"), mark])
        )
    return path.read_bytes()


def unseal(blob: bytes, mark: bytes) -> tuple[memoryview, Any]:
    """The file in a sealed blob, and what was told of it. Raises FormatError if it is
    damaged, or of another kind.
    """
    whole = memoryview(blob)
    tail = 32 + 8 + len(mark)
    end = len(whole) - tail
    if end < 0 or whole[-len(mark) :] != mark:
        raise FormatError(
            "format-invalid", f"no blob that ends with {mark!r}, or one that was cut"
        )
    size = int.from_bytes(whole[end + 32 : end + 40], "little")
    if size > end or hashlib.sha256(whole[:end]).digest() != whole[end : end + 32]:
        raise FormatError("format-invalid", "a damaged blob: its digest is another")
    try:
        return whole[: end - size], json.loads(bytes(whole[end - size : end]))
    except (ValueError, RecursionError) as e:
        raise FormatError(
            "format-invalid", f"a blob whose trailer is not read: {e}"
        ) from e
