"""Writes files that are either complete or not there."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import secrets
import shutil
import stat
import sys
from pathlib import Path
from typing import BinaryIO

from ..errors import WriteError
from .blob import Blob
from .paths import as_path

__all__ = ["expect_writable", "write_whole"]

if sys.platform != "win32":
    import fcntl

_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d+)")
_TEMPORARY = re.compile(r"\.delegraph-[0-9a-f]{16}\.part")
_FALLOC_FL_KEEP_SIZE = 1
_RESERVED = 1 << 25
"""For at least so many bytes, space is reserved; for fewer that takes longer than it saves."""


def write_whole(path: str | os.PathLike[str], content: bytes | Blob) -> None:
    """Write ``content`` to ``path`` as ``cp`` would, but completely or not at all.

    Raises WriteError, or InputError for a path that cannot name a file. The content is finished in a temporary file in
    the target's folder, without a name where there are such files. It then takes the target's place and keeps its mode;
    symbolic links are followed. A target with several names (hard links), or of another owner, stays the file that it
    is, and the finished content is copied into it. A device, a pipe and this process's own standard output are written
    to as they are. These three can be left half-written. Temporary files that killed processes left in the folder are
    removed.
    """
    target = as_path(path)
    try:
        old = _status(target)
        shared = None if old is None else _open_descriptor(target, old)
        if old is None or (stat.S_ISREG(old.st_mode) and shared is None):
            _replace(Path(os.path.realpath(target)), old, content)
        else:
            with open(target if shared is None else os.dup(shared), "wb") as file:
                _put(content, file)
    except OSError as e:
        raise _failed(target, e.strerror or str(e)) from e


def expect_writable(path: str | os.PathLike[str]) -> None:
    """Raise WriteError if ``write_whole`` could not write to ``path``, as far as that can be known before."""
    target = as_path(path)
    try:
        old = _status(target)
    except OSError as e:
        raise _failed(target, e.strerror or str(e)) from e
    folder = Path(os.path.realpath(target)).parent if target.is_symlink() else target.parent
    if old is not None and stat.S_ISDIR(old.st_mode):
        raise _failed(target, "it is a folder")
    if old is not None and not os.access(target, os.W_OK):
        raise _failed(target, "no permission to write to it")
    if old is None and not folder.is_dir():
        raise _failed(target, f"there is no folder {folder}")
    if (old is None or stat.S_ISREG(old.st_mode)) and not os.access(folder, os.W_OK):
        raise _failed(target, f"no permission to write in {folder}")


def _status(target: Path) -> os.stat_result | None:
    """The status of the file that the path leads to, links followed; None if there is none."""
    try:
        return target.stat()
    except FileNotFoundError:
        return None


def _open_descriptor(target: Path, status: os.stat_result) -> int | None:
    """The open descriptor that the path means; None if it means none.

    It may be named (``/dev/fd/7``), or be the file to which standard output or error goes. Opening that file again
    would let what is printed later overwrite the content.
    """
    named = _DESCRIPTOR.fullmatch(os.fspath(target))
    for descriptor in (int(named[1]),) if named else (1, 2):
        with contextlib.suppress(OSError):  # the descriptor is closed
            if os.path.samestat(os.fstat(descriptor), status):
                return descriptor
    return None


def _replace(target: Path, old: os.stat_result | None, content: bytes | Blob) -> None:
    """Write the content to a temporary file, and put that in the place of ``target``."""
    if old is not None and not os.access(target, os.W_OK):
        raise PermissionError(None, "no permission to write to it")  # a rename would not check it
    _remove_leftovers(target.parent)
    mode = 0o666 if old is None else stat.S_IMODE(old.st_mode) & 0o777
    file = _unnamed(target.parent, mode) or _named(target.parent, mode)
    try:
        with file:
            _reserve(file, len(content))
            _put(content, file)
            new = os.fstat(file.fileno())
            if old is not None and (old.st_nlink, old.st_uid, old.st_gid) != (1, new.st_uid, new.st_gid):
                file.seek(0)  # a new file in the old one's place would break its other names, or change its owner
                with target.open("wb") as kept:
                    shutil.copyfileobj(file, kept, 1 << 20)
                return
            if old is not None:
                os.chmod(file.name, mode)
            if sys.platform == "win32":
                file.close()  # Windows renames no open file; elsewhere the lock holds until the name is the target's
            _move(file, target)
    finally:
        if not isinstance(file.name, int):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file.name)


def _move(file: BinaryIO, target: Path) -> None:
    """Give the finished file the target's name."""
    if not isinstance(file.name, int):
        return os.replace(file.name, target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        try:
            _link(file, target.name, folder)
        except FileExistsError:  # a link cannot take an existing name, but a rename can
            part = _free_name()
            _link(file, part, folder)
            os.replace(part, target.name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)


def _link(file: BinaryIO, name: str, folder: int) -> None:
    """Give a file without a name a name in ``folder``.

    ``dst_dir_fd`` is needed: without a folder's descriptor, ``os.link`` does not follow the link in /proc.
    """
    os.link(f"/proc/self/fd/{file.fileno()}", name, dst_dir_fd=folder)


def _reserve(file: BinaryIO, size: int) -> None:
    """Reserve the blocks of a file at once: then a full disk is noticed before the work, and writing is faster (Linux).

    ``os.posix_fallocate`` would write into every block on file systems that cannot reserve.
    """
    if sys.platform != "linux" or size < _RESERVED:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.fallocate(file.fileno(), _FALLOC_FL_KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(size))
    if failed and ctypes.get_errno() == errno.ENOSPC:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _put(content: bytes | Blob, file: BinaryIO) -> None:
    """Write the content to an open file."""
    file.write(content) if isinstance(content, bytes) else content.write_to(file)
    file.flush()


def _unnamed(folder: Path, mode: int) -> BinaryIO | None:
    """A new file without a name, of which nothing remains if the process is killed.

    None on systems other than Linux, and on file systems that have no such files, as NFS and FAT.
    """
    if not hasattr(os, "O_TMPFILE") or not os.path.exists("/proc/self/fd"):
        return None
    try:
        file = open(os.open(folder, os.O_TMPFILE | os.O_RDWR, mode), "w+b")
    except OSError:
        return None
    with contextlib.suppress(OSError):  # this file system has no locks
        _lock(file.fileno())  # for the moment in which it has a temporary name (``_move``)
    return file


def _named(folder: Path, mode: int) -> BinaryIO:
    """A new file with a temporary name, locked for as long as it is open."""
    while True:
        name = folder / _free_name()
        file = open(name, "w+b", opener=lambda path, _: os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode))
        try:
            _lock(file.fileno())
        except BlockingIOError:  # before it was locked, another process took it for a leftover and removes it
            file.close()
            continue
        except OSError:  # this file system has no locks, so nobody can take it for a leftover
            return file
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()


def _free_name() -> str:
    """A name for a temporary file; it is short, however long the target's is."""
    return f".delegraph-{secrets.token_hex(8)}.part"


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files that no process has locked any more: the process that made them was killed."""
    for name in filter(_TEMPORARY.fullmatch, os.listdir(folder)):
        with contextlib.suppress(OSError):  # it is in use, belongs to another user, or is gone by now
            held = os.open(folder / name, os.O_RDWR)
            try:
                _lock(held)
                os.unlink(folder / name)
            finally:
                os.close(held)


def _lock(file: int) -> None:
    """Lock an open file. BlockingIOError if another process has locked it, OSError if files cannot be locked."""
    if sys.platform == "win32":
        raise OSError("files are not locked on Windows")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _failed(target: Path, why: str) -> WriteError:
    """The error for a target that cannot be written."""
    return WriteError("write-failed", f"cannot write {target}: {why}")
