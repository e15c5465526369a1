"""Write and read messages between processes, without pickle.

A message has a header, which is a JSON object, and *parts*, which are bytes. A digest
covers both.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable
from typing import Any

from delegraph.errors import FormatError

PROTOCOL = 1
"""The version of the messages, which must be equal in both processes.

It changes with the kinds of jobs, and with the fields of jobs and answers.
"""
Answer = tuple[dict[str, Any], list[bytes]]
"""The header and the parts of an answer, before ``pack``."""
_MAGIC = b"delegraph message"
# magic, protocol, SHA-256 of the bytes after the digest, size of the header
_HEAD = struct.Struct("<17sB32sQ")
_END_OF_DIGEST = struct.calcsize("<17sB32s")


def pack(header: dict[str, Any], parts: Iterable[bytes] = ()) -> bytes:
    """Return a message of a header, which is a value of JSON, and parts."""
    parts = list(parts)
    text = json.dumps([header, [len(part) for part in parts]]).encode()
    size = len(text).to_bytes(8, "little")
    digest = hashlib.sha256(size + text)
    for part in parts:
        digest.update(part)
    return b"".join((_MAGIC, bytes([PROTOCOL]), digest.digest(), size, text, *parts))


def unpack(data: bytes) -> tuple[dict[str, Any], list[memoryview]]:
    """Return the header and the parts of a message.

    Raises FormatError if it is damaged, or has another protocol.
    """
    view = memoryview(data)
    if len(view) < _HEAD.size or bytes(view[: len(_MAGIC)]) != _MAGIC:
        raise FormatError(
            "format-invalid", "a worker process sent bytes that are not a message"
        )
    _, protocol, digest, size = _HEAD.unpack_from(view)
    if protocol != PROTOCOL:
        raise FormatError(
            "format-invalid",
            f"a worker has protocol {protocol}, but this process has protocol"
            f" {PROTOCOL}",
            hint="install the same delegraph-workers in both environments",
        )
    if hashlib.sha256(view[_END_OF_DIGEST:]).digest() != digest:
        raise FormatError(
            "format-invalid",
            "the message of a worker process is truncated or damaged",
        )
    try:
        header, sizes = json.loads(bytes(view[_HEAD.size : _HEAD.size + size]))
        start = _HEAD.size + size
        parts = list[memoryview]()
        for length in sizes:
            if type(length) is not int or not 0 <= length <= len(view) - start:
                raise ValueError(
                    f"a part has {length!r} bytes, but {len(view) - start} are left"
                )
            parts.append(view[start : start + length])
            start += length
        if not isinstance(header, dict) or start != len(view):
            raise ValueError("the sizes of its parts do not add up")
    except (ValueError, TypeError) as e:
        raise FormatError(
            "format-invalid", f"a message of a worker is invalid: {e}"
        ) from e
    return header, parts
