"""Files that are either whole or not there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from .backend import Blob
from .errors import WriteError


def write_whole(path: str | os.PathLike[str], content: bytes | Blob) -> None:
    """Write ``content`` under a temporary name beside ``path`` and rename it; raises WriteError and leaves nothing."""
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as e:
        raise _failed(target, e) from e
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content) if isinstance(content, bytes) else content.write_to(file)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except BaseException as e:
        os.unlink(temporary)
        if isinstance(e, OSError):
            raise _failed(target, e) from e
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _failed(target: Path, error: OSError) -> WriteError:
    return WriteError("write-failed", f"cannot write {target}: {error.strerror or error}")
