"""Name the calling conventions of blobs, and find them among named data.

A calling convention has the types and largest sizes of a blob's inputs and outputs. See
``bridging.calling_convention``.
"""

from __future__ import annotations

import hashlib
import re

from delegraph.backend import NamedDataStoreOutput

_KEY = re.compile(r".+\.convention\.[0-9a-f]{64}")
_BEGINNING = b'{"inputs":'


def convention_key(backend_id: str, blob: bytes) -> str:
    """Return the key of a blob's calling convention in named data."""
    return f"{backend_id}.convention.{hashlib.sha256(blob).hexdigest()}"


def without_conventions(data: NamedDataStoreOutput) -> NamedDataStoreOutput:
    """Return ``data`` without calling conventions.

    A program file does not need them: it has the values of each call.
    """
    kept = {
        k: entry
        for k, entry in data.pte_data.items()
        if not _is_convention(k, data.buffers[entry.buffer_index])
    }
    return NamedDataStoreOutput(data.buffers, kept, data.external_data)


def _is_convention(key: str, content: object) -> bool:
    """Return whether named data is a calling convention, not a plugin's own data."""
    if not _KEY.fullmatch(key) or not isinstance(content, bytes):
        return False
    return content.startswith(_BEGINNING)
