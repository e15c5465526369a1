"""Writes files completely or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
import sys
from pathlib import Path
from typing import BinaryIO

from ..errors import WriteError
from .as_path import as_path
from .blob_pieces import Blob

__all__ = ["expect_writable", "write_whole"]

if sys.platform != "win32":
    import fcntl

_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d+)")
"""A path of an open descriptor of this process."""
_TEMPORARY = re.compile(r"\.delegraph-[0-9a-f]{16}\.part")


def write_whole(path: str | os.PathLike[str], content: bytes | Blob) -> None:
    """Write ``content`` to ``path``, completely or not at all; symbolic links are
    followed.

    The content is written to a temporary file in the target's folder. That file gets
    the target's permission bits, and then replaces the target. Three kinds of targets
    are written in place instead, so an error can leave them half-written: files that
    have several hard links or another owner, devices and pipes, and this process's own
    stdout or stderr. Temporary files of killed processes are removed from the folder.

    Raises WriteError if the content cannot be written, InputError if ``path`` cannot
    name a file.
    """
    target = as_path(path)
    try:
        old = _status(target)
        descriptor = None if old is None else _open_descriptor(target, old)
        if old is None or (stat.S_ISREG(old.st_mode) and descriptor is None):
            # a regular file or none; ``_replace`` also handles hard links and owners
            _replace(Path(os.path.realpath(target)), old, content)
        else:  # a device, a pipe or a descriptor of this process is written in place
            # a copy of the descriptor, because the end of the block closes it
            opened: Path | int = target if descriptor is None else os.dup(descriptor)
            with open(opened, "wb") as file:
                _write_content(content, file)
    except OSError as e:
        raise _write_error(target, e.strerror or str(e)) from e


def expect_writable(path: str | os.PathLike[str]) -> None:
    """Raise WriteError if ``write_whole`` would fail, without writing; InputError if
    ``path`` cannot name a file.

    This finds three failures: ``path`` is a folder, the permission to write is missing,
    or the folder of the file does not exist. Other failures show only during the write.
    """
    target = as_path(path)
    try:
        old = _status(target)
    except OSError as e:
        raise _write_error(target, e.strerror or str(e)) from e
    # ``write_whole`` needs a temporary file in this folder; of a symbolic link, it is
    # the folder of the file that the link leads to
    folder = (
        Path(os.path.realpath(target)).parent if target.is_symlink() else target.parent
    )
    if old is not None and stat.S_ISDIR(old.st_mode):
        raise _write_error(target, "it is a folder")
    if old is not None and not os.access(target, os.W_OK):
        raise _write_error(target, "no permission to write to it")
    if old is None and not folder.is_dir():
        raise _write_error(target, f"there is no folder {folder}")
    if (old is None or stat.S_ISREG(old.st_mode)) and not os.access(folder, os.W_OK):
        raise _write_error(target, f"no permission to write in {folder}")


def _status(target: Path) -> os.stat_result | None:
    """Return the status of the file at ``target``, or None if there is no such file.

    Symbolic links are followed.
    """
    try:
        return target.stat()
    except FileNotFoundError:
        return None


def _open_descriptor(target: Path, status: os.stat_result) -> int | None:
    """Return the open descriptor of this process that leads to ``target``, or None.

    Candidates are the number in a path such as ``/dev/fd/7``, else stdout and stderr,
    which a shell may have redirected to ``target``. Opening ``target`` a second time
    would be wrong: later prints would overwrite the content. ``status``: that of
    ``target``.
    """
    match = _DESCRIPTOR.fullmatch(os.fspath(target))
    # 1 and 2 are stdout and stderr
    candidates = [int(match[1])] if match else [1, 2]
    for descriptor in candidates:
        # suppressed: the descriptor is closed
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), status):
                return descriptor
    return None


def _replace(target: Path, old: os.stat_result | None, content: bytes | Blob) -> None:
    """Write the content to a temporary file, then rename that file to ``target``.

    ``old``: status of the existing target; None if no target exists. If the target has
    several hard links, or another owner than new files get, the content is copied into
    the target instead. The temporary file never remains, even after an error. Raises
    PermissionError if the target must not be written, or another OSError.
    """
    # A rename does not check the target's permissions, so they are checked here. If
    # another process has removed the target by now, there is nothing to check.
    if old is not None and not os.access(target, os.W_OK) and os.path.lexists(target):
        raise PermissionError(None, "no permission to write to it")
    _remove_leftovers(target.parent)
    # permission bits; the system removes those of the umask when it creates the file
    mode = 0o666 if old is None else stat.S_IMODE(old.st_mode) & 0o777
    file = _open_temporary(target.parent, mode)
    try:
        with file:
            _write_content(content, file)
            new = os.fstat(file.fileno())
            # not ``!= 1``: a target that another process replaced while its status was
            # read has 0 links
            if old is not None and (
                old.st_nlink > 1 or (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid)
            ):
                # replacing the target would separate it from its other hard links, or
                # change its owner
                file.seek(0)
                with target.open("wb") as existing:
                    shutil.copyfileobj(file, existing, 1 << 20)  # 1 MiB at a time
                return
            # set again, because the umask may have removed bits that the target has
            if old is not None:
                os.chmod(file.name, mode)
            if sys.platform == "win32":
                # Windows cannot rename an open file; elsewhere the lock is held until
                # after the rename
                file.close()
            os.replace(file.name, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file.name)


def _write_content(content: bytes | Blob, file: BinaryIO) -> None:
    """Write all bytes of the content to an open file."""
    if isinstance(content, bytes):
        file.write(content)
    else:
        content.write_to(file)
    file.flush()


def _open_temporary(folder: Path, mode: int) -> BinaryIO:
    """Open a new file with a temporary name, and lock it.

    The lock shows ``_remove_leftovers`` of other processes that the file is in use. On a
    file system without locks, the file is not locked. If another process locks or
    removes the file first, this function makes another one. ``mode``: permission bits,
    from which the system removes those of the umask.
    """
    while True:
        # the target's name is not part of this one: it may already have the greatest
        # length that the file system allows
        name = folder / f".delegraph-{secrets.token_hex(8)}.part"
        file = open(
            name,
            "w+b",
            opener=lambda path, _: os.open(
                path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode
            ),
        )
        try:
            _lock(file.fileno())
        except BlockingIOError:
            # another process locked the file first and is about to remove it
            file.close()
            continue
        except OSError:
            # this file system has no locks, so no process removes leftovers here
            return file
        # a file that was removed before it was locked has no links
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files of killed processes; a running process locks its file."""
    for name in filter(_TEMPORARY.fullmatch, os.listdir(folder)):
        # suppressed: the file is locked, belongs to another user, or is gone by now
        with contextlib.suppress(OSError):
            descriptor = os.open(folder / name, os.O_RDWR)
            try:
                _lock(descriptor)
                os.unlink(folder / name)
            finally:
                os.close(descriptor)


def _lock(file: int) -> None:
    """Lock an open file, given its descriptor.

    Raises BlockingIOError if another process has locked the file, another OSError if
    the system cannot lock files.
    """
    if sys.platform == "win32":
        raise OSError("file locks are not supported on Windows")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _write_error(target: Path, why: str) -> WriteError:
    """Return the WriteError for ``target`` with the reason ``why``."""
    return WriteError("write-failed", f"cannot write {target}: {why}")
