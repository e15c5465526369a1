"""Reads the metadata files of installed distributions; a damaged file affects only its
own distribution.

Reading never blocks (as it could at a FIFO), and the number of bytes read is limited. A
distribution's name is taken from its folder, not from METADATA: no file has to be
opened for it, and METADATA cannot claim another name.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import importlib_metadata
from importlib_metadata import EntryPoint

from ..plugin import PROJECT
from .loading import installed_path

MOST_BYTES = 1 << 20
"""The most bytes that ``entry_points.txt``, and the head of METADATA, may have."""
MOST_ENTRY_POINTS = 100
"""The most entry points of one distribution for delegraph. Each is a module to import,
and a process of the doctor.
"""
Distribution = Any  # importlib-metadata types it differently from version to version


class Damaged(Exception):
    """A metadata file of a distribution is damaged; the message says which file, and
    how.
    """


class Head(NamedTuple):
    """The fields of METADATA that are used; a field that METADATA lacks is empty."""

    name: str = ""
    version: str = ""
    requirements: tuple[str, ...] = ()


def canonical(distribution: str) -> str:
    """The normalized form of a distribution's name: ``delegraph-tosa`` for
    ``Delegraph_TOSA``.
    """
    return re.sub(r"[-_.]+", "-", distribution).lower()


def copies() -> dict[str, list[Distribution]]:
    """Canonical name -> the installed copies of that distribution, in the order of the
    path; only the first is used.
    """
    by_name: dict[str, list[Distribution]] = {}
    for distribution in importlib_metadata.distributions(path=installed_path()):
        by_name.setdefault(canonical(name_and_version(distribution)[0]), []).append(
            distribution
        )
    return by_name


def name_and_version(distribution: Distribution) -> tuple[str, str]:
    """Name and version of a distribution, taken from the name of its metadata folder;
    an unknown version is "".

    If the metadata folder's name has neither, as the ``EGG-INFO`` of an egg, both are
    read from METADATA. If that lacks the name, too, the name is that of the folder in
    which the distribution is installed.
    """
    # such as ``acme_npu-1.0.dist-info``
    folder = os.path.basename(str(getattr(distribution, "_path", "")))
    name, _, version = folder.rpartition(".")[0].partition("-")
    if name:
        return name, version
    try:
        metadata = head(distribution)
    except Damaged:
        metadata = Head()
    return metadata.name or os.path.basename(place(distribution)), metadata.version


def place(distribution: Distribution) -> str:
    """The folder in which the distribution is installed."""
    return str(distribution.locate_file(""))


def head(distribution: Distribution) -> Head:
    """The name, version and requirements in the file METADATA (PKG-INFO in old
    formats). Raises Damaged.

    All are empty if there is neither file.
    """
    for file in ("METADATA", "PKG-INFO"):
        content = _content(distribution, file)
        if content is not None:
            # the fields end at the first empty line; a readme follows, which may be
            # long and is not decoded
            lines = _text(
                content.replace(b"\r\n", b"\n").partition(b"\n\n")[0], file
            ).split("\n")
            fields = [
                (name, value.strip())
                for name, _, value in (line.partition(":") for line in lines)
            ]
            # of several fields of a name, the first counts
            first = dict(reversed(fields))
            requirements = tuple(
                value for name, value in fields if name == "Requires-Dist"
            )
            return Head(first.get("Name", ""), first.get("Version", ""), requirements)
    return Head()


def version(name: str, installed: dict[str, list[Distribution]]) -> str | None:
    """The version of the distribution ``name``; None if it is not installed.
    ``installed``: result of ``copies()``.

    It is that of METADATA or, if METADATA is damaged or has none, that in the name of
    the metadata folder.
    """
    # of several copies, Python uses the first on the path
    first, *_ = installed.get(canonical(name), [None])
    if first is None:
        return None
    try:
        return head(first).version or name_and_version(first)[1]
    except Damaged:
        return name_and_version(first)[1]


# --- entry points ---------------------------------------------------------------------


def entry_points_of(distribution: Distribution) -> list[EntryPoint]:
    """The entry points of a distribution in the group ``delegraph``. Raises Damaged.

    A damaged file in which ``[delegraph`` does not occur is no error: the distribution
    has no plugin.
    """
    file = "entry_points.txt"
    content = _content(distribution, file)
    # most distributions; not worth parsing
    if content is None or f"[{PROJECT}".encode() not in content:
        return []
    entries: dict[str, EntryPoint] = {}
    for line in _lines_of_group(_text(content, file)):
        name, _, value = (part.strip() for part in line.partition("="))
        # importlib-metadata 9 raises for any other value; other versions accept it.
        if not name or not EntryPoint.pattern.match(value) or name in entries:
            raise Damaged(
                f"{file} has a line that is no `name = module`, or is there twice:"
                f" {line[:100]!r}"
            )
        entries[name] = EntryPoint(name, value, PROJECT)
    if len(entries) > MOST_ENTRY_POINTS:
        raise Damaged(
            f"{file} has {len(entries)} entry points for {PROJECT}, more than"
            f" {MOST_ENTRY_POINTS}"
        )
    return list(entries.values())


def _lines_of_group(text: str) -> Iterator[str]:
    """The lines of the group ``delegraph`` in ``entry_points.txt``, without comments.
    Raises Damaged.
    """
    group = ""
    for line in map(str.strip, text.split("\n")):
        if line.startswith("["):
            if not line.endswith("]"):
                raise Damaged(
                    "entry_points.txt has a group without its closing bracket:"
                    f" {line[:100]!r}"
                )
            group = line[1:-1]
        elif line and not line.startswith("#") and group == PROJECT:
            yield line


# --- files ----------------------------------------------------------------------------


def _text(content: bytes, file: str) -> str:
    """The content of ``file`` as text. Raises Damaged if it has more than MOST_BYTES
    bytes or is not UTF-8.
    """
    if len(content) > MOST_BYTES:
        raise Damaged(f"{file} is larger than {MOST_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as e:
        raise Damaged(f"{file} is no text: {e}") from e


def _content(distribution: Distribution, file: str) -> bytes | None:
    """The first MOST_BYTES + 1 bytes of a metadata file; None if there is no such file.
    Raises Damaged.

    The extra byte shows that a file is too long.
    """
    folder = getattr(distribution, "_path", None)
    try:
        if not isinstance(folder, Path):  # in an archive, or provided by another finder
            text = distribution.read_text(file)
            return None if text is None else text.encode()[: MOST_BYTES + 1]
        # O_NONBLOCK: opening a FIFO must not wait for its writer
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(os.path.join(folder, file), flags)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Damaged(f"{file} is no regular file")
            return os.read(descriptor, MOST_BYTES + 1)
        finally:
            os.close(descriptor)
    except (FileNotFoundError, NotADirectoryError):
        # old metadata may be a single file, not a folder
        return None
    except (OSError, ValueError) as e:
        raise Damaged(f"{file} cannot be read: {e}") from e
