"""A folder of cache entries by key, and optionally a store behind it that a team
shares.

An entry is bytes that begin with a digest; ``entry_bytes`` knows what they contain.
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

from delegraph import OptionError, WriteError
from delegraph.io.atomic_write import write_whole

from .remote_cache import RemoteFolder

_LIMIT = 10 << 30
_NAME = re.compile(r"[0-9a-f]{64}\.entry")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
"""The beginning of a URL. One letter before the colon is a drive of Windows."""
_NO_FILE = "it is no file, but a folder, link, pipe or device"


class CacheEntry(NamedTuple):
    """An entry of a cache: its key, size in bytes, last use in seconds since the epoch,
    and file.
    """

    key: str
    bytes: int
    used: float
    path: Path


class Store(Protocol):
    """Bytes by key, somewhere else: what a cache reads through and writes back to.

    Both methods may raise anything: the store is then not used again in that lowering,
    and the report says why. The caller waits for them, so a store that may be slow
    needs a limit of its own. Threads call them at the same time.
    """

    def read(self, key: str) -> bytes | None:
        """The bytes of an entry; None if there is none. They are checked by the caller."""

    def write(self, key: str, data: bytes) -> None:
        """Store an entry. Who reads meanwhile may not see a part of it."""


class Cache:
    """Compiled partitions in a folder, for ``Compiler(cache=Cache(...))``.

    ``folder``: None takes the user's cache folder for delegraph. ``limit``: bytes;
    above it, the entries that were not used for the longest time are removed.
    ``remote``: a store that others use too; entries are copied from there and to there.
    A text is the URL of a folder, such as ``s3://...``. ``shared``: allow a folder that
    others own or can write to. It is refused otherwise, because compiled code in it
    would be run.

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
            text = (
                "the folder of a cache is on this machine, and it is the URL of a"
                " remote folder"
            )
            hint = (
                "Cache(remote=URL), --cache-remote URL or DELEGRAPH_CACHE_REMOTE; the"
                " URL is not shown"
            )
            raise OptionError("option-invalid", text, hint=hint)
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
        if status.st_uid != os.geteuid() or status.st_mode & (
            stat.S_IWGRP | stat.S_IWOTH
        ):
            raise _unusable(
                self.folder,
                "others own it or can write to it, and cached code would be run",
            )

    def read(self, key: str) -> bytes | None:
        """The bytes of an entry, unchecked; None if the folder has none.

        Raises OSError if it cannot be read.
        """
        path = self._path(key)
        try:
            data = _content(path)
        except FileNotFoundError:
            return None
        # record the use, by which ``make_room`` chooses; fails if another user owns the
        # entry, or it is gone by now
        with contextlib.suppress(OSError):
            os.utime(path)
        return data

    def write(self, key: str, data: bytes) -> None:
        """Store an entry, completely or not at all.

        Raises WriteError, also if its name is that of no file.
        """
        path = self._path(key)
        # ``write_whole`` would write to where it leads
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise WriteError("write-failed", f"cannot write {path}: {_NO_FILE}")
        write_whole(path, data)

    def entries(self) -> Iterator[CacheEntry]:
        """The entries of the folder, except those that another process removes
        meanwhile. Only files are entries.
        """
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if _NAME.fullmatch(path.name) and stat.S_ISREG(
                    (status := path.lstat()).st_mode
                ):
                    yield CacheEntry(path.stem, status.st_size, status.st_mtime, path)

    def remove(self, keys: Any) -> None:
        """Remove entries. A process that has one open can still read it."""
        for key in keys:
            self._path(key).unlink(missing_ok=True)

    def make_room(self) -> None:
        """Remove the least recently used entries until the limit is kept.

        Other processes may do so meanwhile.
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
    """The cache for ``given``, the ``cache`` argument of a ``Compiler``; None for none.

    A ``Cache`` is returned as it is. A path stands for a cache in that folder, "" and
    True for one in the user's folder, False for no cache. None leaves the choice to the
    environment: a cache in the folder that ``DELEGRAPH_CACHE`` names, or in the user's
    folder if there only is a remote folder, or no cache. ``remote``: the URL of that
    folder; None: ``DELEGRAPH_CACHE_REMOTE``, if that is set.
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
    """The folder for delegraph's cache in the user's cache folder of this operating
    system.
    """
    if sys.platform == "win32":
        return (
            Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local")
            / "delegraph/cache"
        )
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/delegraph"
    # no absolute path is to be ignored, as its specification says
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (
        Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    ) / "delegraph"


def _content(path: Path) -> bytes:
    """The bytes of an entry.

    Raises OSError, also for what is no file: a pipe could have no writer, a device no
    end.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OSError(errno.EINVAL, _NO_FILE)
    return path.read_bytes()


def _unusable(folder: Path, why: str) -> OptionError:
    """The error for a folder that cannot be a cache, because of ``why``."""
    text = f"the folder {folder} cannot be a cache: {why}"
    hint = (
        "name a folder of your own, with the mode 0700 (a new one gets it), or"
        " Cache(folder, shared=True)"
    )
    return OptionError("option-invalid", text, hint=hint)
