"""Keep cache entries by key in a folder, and optionally in a remote store of a team.

An entry is bytes that begin with a digest; ``entry_bytes`` defines their content.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from delegraph.errors import OptionError, WriteError
from delegraph.io.atomic_write import write_whole

from .config import xdg_folder
from .remote_cache import RemoteFolder

_LIMIT = 10 << 30
_NAME = re.compile(r"[0-9a-f]{64}\.entry")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
"""The beginning of a URL. One letter before the colon is a drive of Windows."""
_NO_FILE = "it is no regular file but a folder, link, pipe or device"


class CacheEntry(NamedTuple):
    """An entry of a cache."""

    key: str
    bytes: int
    used: float
    """The time of the last use, in seconds since the epoch."""
    path: Path


class Store(Protocol):
    """A remote store of bytes by key, which a cache reads and writes.

    Both methods may raise any exception. The store is then not used again in that
    lowering, and the report has the reason. The caller waits for them, so a slow store
    needs a time limit. Several threads may call them at the same time.
    """

    def read(self, key: str) -> bytes | None:
        """Return the bytes of an entry, unchecked; None if there is none."""

    def write(self, key: str, data: bytes) -> None:
        """Store an entry, so that a reader never sees a part of it."""


class Cache:
    """Compiled partitions in a folder, for ``Compiler(cache=Cache(...))``.

    ``folder``: None stands for the user's cache folder for delegraph. ``limit``: bytes;
    above the limit, the least recently used entries are removed. ``remote``: a store
    that a team shares; entries are copied from it and to it. A text is the URL of a
    folder, such as ``s3://...``. ``shared``: allow a folder that other users own or can
    write to. By default it is refused: the cache contains compiled code that runs.

    Many processes and threads may use a folder at once. Raises OptionError for a folder
    that cannot be a cache.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        limit: int = _LIMIT,
        remote: str | Store | None = None,
        shared: bool = False,
    ) -> None:
        if type(limit) is not int or limit < 0:
            raise OptionError(
                "option-invalid",
                f"the limit of a cache is a number of bytes, not {limit!r}",
            )
        try:
            self.folder = user_folder() if folder is None else Path(folder)
        except TypeError as e:
            raise OptionError(
                "option-invalid", f"the folder of a cache is a path, not {folder!r:.80}"
            ) from e
        if _URL.match(os.fspath(self.folder)):
            # a URL may contain a password, so the error does not show it
            raise OptionError(
                "option-invalid",
                "the folder of a cache is the URL of a remote folder, not a folder of"
                " this machine",
                hint="pass the URL as Cache(remote=URL), --cache-remote URL or"
                " DELEGRAPH_CACHE_REMOTE",
            )
        if isinstance(remote, str):
            remote = RemoteFolder(remote) if remote else None
        self.limit = limit
        self.remote = remote
        try:
            self.folder.mkdir(
                mode=0o777 if shared else 0o700, parents=True, exist_ok=True
            )
            status = self.folder.stat()
        except OSError as e:
            raise _unusable(self.folder, e.strerror or str(e)) from e
        if shared or os.name != "posix":
            return
        is_foreign = status.st_uid != os.geteuid()
        others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if is_foreign or others_write:
            raise _unusable(
                self.folder,
                "other users own it or can write to it, and cached code would run",
            )

    def read(self, key: str) -> bytes | None:
        """Return the bytes of an entry, unchecked; None if the folder has none.

        Raises OSError if it cannot be read.
        """
        path = self._path(key)
        try:
            data = _content(path)
        except FileNotFoundError:
            return None
        # record the use for ``make_room``; this fails if another user owns the entry,
        # or another process removed it
        with contextlib.suppress(OSError):
            os.utime(path)
        return data

    def write(self, key: str, data: bytes) -> None:
        """Store an entry, completely or not at all.

        Raises WriteError, also if a folder, link, pipe or device has its name.
        """
        path = self._path(key)
        # ``write_whole`` would follow a link
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise WriteError("write-failed", f"cannot write {path}: {_NO_FILE}")
        write_whole(path, data)

    def entries(self) -> Iterator[CacheEntry]:
        """Yield the entries of the folder, without entries that another process removes.

        Only regular files are entries.
        """
        for path in self.folder.iterdir():
            if not _NAME.fullmatch(path.name):
                continue
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode):
                yield CacheEntry(path.stem, status.st_size, status.st_mtime, path)

    def remove(self, keys: Any) -> None:
        """Remove entries. A process that has one open can still read it."""
        for key in keys:
            self._path(key).unlink(missing_ok=True)

    def make_room(self) -> None:
        """Remove the least recently used entries until the limit is kept.

        Other processes may do so at the same time.
        """
        known = sorted(self.entries(), key=lambda entry: entry.used)
        size = sum(entry.bytes for entry in known)
        for entry in known:
            if size <= self.limit:
                break
            self.remove([entry.key])
            size -= entry.bytes

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.entry"


def choose_cache(
    given: bool | str | os.PathLike[str] | Cache | None, remote: str | None = None
) -> Cache | None:
    """Return the cache for ``given``, the ``cache`` argument of a ``Compiler``.

    A ``Cache`` is returned unchanged. A path stands for a cache in that folder, "" and
    True for one in the user's folder, False for no cache. None leaves the choice to
    ``DELEGRAPH_CACHE``; if it is not set, a remote folder implies the user's folder.
    ``remote`` is the URL of a remote folder, by default ``DELEGRAPH_CACHE_REMOTE``.
    """
    if isinstance(given, Cache):
        return given
    if given is False:
        return None
    remote = remote or os.environ.get("DELEGRAPH_CACHE_REMOTE") or None
    if given is None:
        given = os.environ.get("DELEGRAPH_CACHE") or None
        if given is None and remote is None:
            return None
    if given is True or given == "":
        given = None
    return Cache(given, remote=remote)


def user_folder() -> Path:
    """Return delegraph's folder in the user's cache folder of this operating system."""
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local"
        return Path(local) / "delegraph/cache"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/delegraph"
    return xdg_folder("XDG_CACHE_HOME", ".cache") / "delegraph"


def _content(path: Path) -> bytes:
    """Return the bytes of an entry.

    Raises OSError, also for a pipe or a device: reading it might not end.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OSError(errno.EINVAL, _NO_FILE)
    return path.read_bytes()


def _unusable(folder: Path, why: str) -> OptionError:
    """Return the error for a folder that cannot be a cache."""
    text = f"the folder {folder} cannot be a cache: {why}"
    hint = (
        "name a folder of your own with the mode 0700 (a new folder gets it), or pass"
        " Cache(folder, shared=True)"
    )
    return OptionError("option-invalid", text, hint=hint)
