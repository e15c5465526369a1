"""Checks file names that callers pass."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..errors import InputError

__all__ = ["as_path"]


def as_path(name: Any) -> Path:
    """Return ``name`` as a Path. Raises InputError if it cannot name a file: a wrong
    type, text with a null character, or text that cannot be encoded.
    """
    try:
        path = Path(name)
        if b"\0" not in os.fsencode(path):
            return path
    # a wrong type, or text that the file system's encoding lacks
    except (TypeError, UnicodeEncodeError):
        pass
    raise InputError("input-invalid", f"a path of a file is wanted, not {name!r}")
