"""The named data that says how a blob is called: its key, and files without it."""

from __future__ import annotations

import hashlib
import re

from delegraph.backend import NamedDataStoreOutput

_KEY = re.compile(r".+\.convention\.[0-9a-f]{64}")


def convention_key(backend_id: str, blob: bytes) -> str:
    """The key of what says how ``blob`` is called."""
    return f"{backend_id}.convention.{hashlib.sha256(blob).hexdigest()}"


def without_conventions(data: NamedDataStoreOutput) -> NamedDataStoreOutput:
    """``data`` without what says how blobs are called: the values of their calls say it in a program file."""
    kept = {key: entry for key, entry in data.pte_data.items() if not _KEY.fullmatch(key)}
    return NamedDataStoreOutput(data.buffers, kept, data.external_data)
