"""Read and write the remote folder of a cache, in any store that fsspec opens."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from .store_errors import StoreError, kind_and_status

_TIME_LIMIT = 20.0
"""Seconds for reading or writing one entry."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)::?//")
_SHOWN = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://"
    r"(?:[^/@?#\s]+@)?"  # user name and password
    r"(?P<host>[\w.-]*(?::\d+)?)"
    r"(?P<path>(?:/[^@?#%;]*)?)"
    r"(?:[?#][^@]*)?"  # query and fragment
)
"""A URL of a known form: its parts that may be secret are known."""
_LOCAL = re.compile(r"[^:@?#%;]*")
"""A path on this machine."""


class RemoteFolderError(StoreError):
    """The folder does not answer, or answers with an error, which the message names."""


class RemoteFolder:
    """Entries in the folder at ``url``, for ``delegraph_workers.Cache(remote=...)``.

    fsspec needs the package for the scheme of the URL. A folder that does not answer or
    is full raises ``RemoteFolderError``, which becomes a note of the report.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    @property
    def name(self) -> str:
        """Return the URL for reports: scheme, host and path, without user name, password,
        query and fragment.

        For a URL of an unknown form, this returns only the scheme: the rest may contain
        a password.
        """
        if _LOCAL.fullmatch(self.url):
            return self.url
        parts = _SHOWN.fullmatch(self.url)
        if parts is not None and "/.." not in parts["path"]:
            return f"{parts['scheme']}://{parts['host']}{parts['path']}"
        scheme = _SCHEME.match(self.url)
        if scheme is None:
            return "at a URL without a scheme"
        return f"{scheme[1]}://..."

    def read(self, key: str) -> bytes | None:
        """Return the bytes of an entry; None if there is none.

        Raises RemoteFolderError.
        """

        def read_entry() -> bytes | None:
            system, folder = self._open()
            try:
                data: bytes = system.cat_file(f"{folder}/{key}.entry")
            except FileNotFoundError:
                return None
            return data

        found: bytes | None = self._in_time(read_entry)
        return found

    def write(self, key: str, data: bytes) -> None:
        """Store an entry. Raises RemoteFolderError."""

        def write_entry() -> None:
            """Write the entry, and create a missing folder."""
            system, folder = self._open()
            try:
                system.pipe_file(f"{folder}/{key}.entry", data)
            except FileNotFoundError:
                # Create the folder, but not the bucket or folder above it: a misspelt
                # URL would create a wrong one.
                if "/" not in folder.strip("/"):
                    raise
                system.mkdir(folder, create_parents=False)
                system.pipe_file(f"{folder}/{key}.entry", data)

        self._in_time(write_entry)

    def _open(self) -> tuple[Any, str]:
        """Return the fsspec file system, and the folder's path in it."""
        import fsspec  # imported late: it takes half a second

        found: tuple[Any, str] = fsspec.core.url_to_fs(self.url)
        return found

    def _in_time(self, call: Callable[[], Any]) -> Any:
        """Return the result of ``call``, made in a thread.

        Raises RemoteFolderError if it fails or takes longer than ``_TIME_LIMIT``. In
        the second case, the thread continues, and its result is dropped.
        """
        answer: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

        def run() -> None:
            """Put the result or the error into ``answer``."""
            try:
                answer.put((call(), None))
            except BaseException as e:
                answer.put((None, e))

        threading.Thread(target=run, name="delegraph cache", daemon=True).start()
        try:
            result, error = answer.get(timeout=_TIME_LIMIT)
        except Empty:
            raise RemoteFolderError(
                f"the folder did not answer within {_TIME_LIMIT:g} s"
            ) from None
        if error is not None:
            # not ``from error``: a traceback would show its text, which may contain
            # the password
            raise RemoteFolderError(self._reason(error)) from None
        return result

    def _reason(self, error: BaseException) -> str:
        """Return the reason of a failure, without the text of a foreign error."""
        import fsspec

        scheme = _SCHEME.match(self.url)
        if isinstance(error, ModuleNotFoundError):
            if error.name and error.name.isidentifier():
                return f"the package {error.name} is not installed"
        if isinstance(error, ImportError) and scheme is not None:
            # such as "Install s3fs to access S3", which fsspec has for each scheme
            known = fsspec.registry.known_implementations.get(scheme[1], {})
            return str(known.get("err") or kind_and_status(error))
        if scheme is not None and scheme[1] not in fsspec.available_protocols():
            return f"fsspec does not know the scheme {scheme[1]!r}"
        return kind_and_status(error)
