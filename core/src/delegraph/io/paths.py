"""File names that callers give."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..errors import InputError

__all__ = ["as_path"]


def as_path(given: Any) -> Path:
    """``given`` as a Path. Raises InputError for what cannot name a file.

    Another type, or text with a null character.
    """
    try:
        path = Path(given)
        if b"\0" not in os.fsencode(path):
            return path
    except (TypeError, UnicodeEncodeError):
        pass
    raise InputError("input-invalid", f"a path of a file is wanted, not {given!r}")
