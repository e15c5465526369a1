"""Sealed blobs: an engine's own file, followed by data of the plugin and a digest.

Readers of most formats skip bytes after the end of a file, so the engine's own tools
can read a sealed file as well. The trailer is JSON, the SHA-256 of file and JSON, the
length of the JSON (8 bytes, little endian) and a mark. The digest detects damage before
an engine without checks reads the file. It does not protect against attackers.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from delegraph.errors import FormatError


def seal(path: Path, mark: bytes, data: Any) -> bytes:
    """Append a trailer with ``data`` to the file at ``path``; return the sealed blob.

    ``data`` is written as JSON. ``mark`` identifies the kind of blob, and ends with a
    version. The file is read into memory only once.
    """
    text = json.dumps(data).encode()
    with path.open("rb+") as file:
        digest = hashlib.file_digest(file, "sha256")
        digest.update(text)
        length = len(text).to_bytes(8, "little")
        file.write(text + digest.digest() + length + mark)
    return path.read_bytes()


def unseal(blob: bytes, mark: bytes) -> tuple[memoryview, Any]:
    """Return the file in a sealed blob, and the data that was sealed with it.

    Raises FormatError if the blob is damaged, or of another kind.
    """
    content = memoryview(blob)
    # after the JSON: the digest (32 bytes), the length of the JSON (8), the mark
    end = len(content) - (32 + 8 + len(mark))
    if end < 0 or content[-len(mark) :] != mark:
        raise FormatError(
            "format-invalid",
            f"the blob does not end with {mark!r}: it is truncated or of another kind",
        )
    size = int.from_bytes(content[end + 32 : end + 40], "little")
    digest = content[end : end + 32]
    if size > end or hashlib.sha256(content[:end]).digest() != digest:
        raise FormatError(
            "format-invalid", "the blob is damaged: its SHA-256 digest does not match"
        )
    try:
        return content[: end - size], json.loads(bytes(content[end - size : end]))
    except (ValueError, RecursionError) as e:
        raise FormatError(
            "format-invalid", f"the trailer of the blob is no valid JSON: {e}"
        ) from e
