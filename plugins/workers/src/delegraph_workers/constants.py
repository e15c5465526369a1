"""Write large constants of partitions once into files, which all workers map."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .forms import Memory


class Absent(Exception):
    """A worker cannot read the file of a constant: it runs on another machine."""


class Folder:
    """A private folder with the constants of one lowering, by digest."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def add(self, memory: Memory) -> None:
        """Write a constant, unless the folder has it."""
        path = self.path / memory.digest.hex()
        with self._lock:
            if path.exists():
                return
            partial = path.with_suffix(".partial")
            with partial.open("wb") as file:
                for piece in memory.pieces():
                    file.write(piece)
            partial.rename(path)


def fetch_from(
    folder: str | None, inline: dict[bytes, Any]
) -> Callable[[bytes, int], Any]:
    """Return the function with which ``forms.read`` gets large constants.

    It returns a private mapping of a file, or bytes of the message (``inline``).
    """

    def fetch(digest: bytes, size: int) -> Any:
        if digest in inline:
            return bytearray(inline[digest])
        path = os.path.join(folder or "", digest.hex())
        if folder is None or not os.path.exists(path):
            raise Absent(path)
        with open(path, "rb") as file:
            return mmap.mmap(
                file.fileno(),
                size,
                flags=mmap.MAP_PRIVATE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE,
            )

    return fetch
