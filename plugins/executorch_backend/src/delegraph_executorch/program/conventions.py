"""The named data that says how a blob is called: its key, and files without it."""

from __future__ import annotations

import hashlib
import re

from delegraph.backend import NamedDataStoreOutput

_KEY = re.compile(r".+\.convention\.[0-9a-f]{64}")
_BEGINNING = b'{"inputs":'


def convention_key(backend_id: str, blob: bytes) -> str:
    """The key of what says how ``blob`` is called."""
    return f"{backend_id}.convention.{hashlib.sha256(blob).hexdigest()}"


def without_conventions(data: NamedDataStoreOutput) -> NamedDataStoreOutput:
    """``data`` without what says how blobs are called: the values of their calls say it
    in a program file.
    """
    kept = {
        k: entry
        for k, entry in data.pte_data.items()
        if not _is_convention(k, data.buffers[entry.buffer_index])
    }
    return NamedDataStoreOutput(data.buffers, kept, data.external_data)


def _is_convention(key: str, content: object) -> bool:
    """Whether named data is a convention, and not a plugin's own data under a key of
    that form.
    """
    return (
        bool(_KEY.fullmatch(key))
        and isinstance(content, bytes)
        and content.startswith(_BEGINNING)
    )
