"""The remote folder of a cache: what a team shares, in any store that fsspec opens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

_PATIENCE = 20.0
"""Seconds for reading or writing one entry."""


class Away(Exception):
    """The folder does not answer, or answers with an error; the message says which."""


class RemoteFolder:
    """Entries in the folder at ``url``, for ``delegraph.Cache(remote=...)``; the package for its scheme is installed.

    A folder that does not answer or is full raises ``Away``, which the cache makes a note of its report.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    @property
    def name(self) -> str:
        """The URL for reports, without user name, password and query."""
        scheme, separator, rest = self.url.partition("://")
        return f"{scheme}{separator}{rest.rpartition('@')[2].partition('?')[0]}"

    def read(self, key: str) -> bytes | None:
        """The bytes of an entry; None if there is none. Raises Away."""

        def ask() -> bytes | None:
            """The bytes of the entry; None if there is none."""
            system, folder = self._open()
            try:
                data: bytes = system.cat_file(f"{folder}/{key}.entry")
            except FileNotFoundError:
                return None
            return data

        found: bytes | None = self._within(ask)
        return found

    def write(self, key: str, data: bytes) -> None:
        """Store an entry. Raises Away."""

        def store() -> None:
            """Write the entry, and make the folder if there is none."""
            system, folder = self._open()
            try:
                system.pipe_file(f"{folder}/{key}.entry", data)
            except FileNotFoundError:
                # The folder does not exist: make it. But not the bucket or folder above it, which a misspelt URL would
                # create.
                if "/" not in folder.strip("/"):
                    raise
                system.mkdir(folder, create_parents=False)
                system.pipe_file(f"{folder}/{key}.entry", data)

        self._within(store)

    def _open(self) -> tuple[Any, str]:
        """The fsspec file system, and the folder's path in it."""
        import fsspec  # imported late: it takes half a second

        found: tuple[Any, str] = fsspec.core.url_to_fs(self.url)
        return found

    def _within(self, call: Callable[[], Any]) -> Any:
        """The result of ``call``, made in a thread. Raises Away if it fails or takes longer than ``_PATIENCE``.

        In the second case the thread goes on by itself, and its result is dropped.
        """
        answer: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

        def run() -> None:
            """Put the result and None into ``answer``, or None and the error."""
            try:
                answer.put((call(), None))
            except BaseException as e:
                answer.put((None, e))

        threading.Thread(target=run, name="delegraph cache", daemon=True).start()
        try:
            result, failed = answer.get(timeout=_PATIENCE)
        except Empty:
            raise Away(f"no answer in {_PATIENCE:g} s") from None
        if failed is not None:
            raise Away(f"{type(failed).__name__}: {failed}".replace(self.url, self.name)) from failed
        return result
