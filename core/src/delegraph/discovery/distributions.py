"""Reads what pip wrote about the installed distributions, such that damage to one costs only that one.

Nothing here waits (a FIFO has no data), and nothing is read without bound. A distribution is the one that its folder is
named after: that is known without opening a file, so that no METADATA can pretend to be another distribution.
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
"""The most bytes of ``entry_points.txt``, and of the head of METADATA."""
MOST_ENTRY_POINTS = 100
"""The most entry points of one distribution in our group; each is a module to import, and a process of the doctor."""
Distribution = Any  # importlib-metadata types it differently from version to version


class Damaged(Exception):
    """A file that pip wrote about a distribution cannot be used; the message says which, and why."""


class Head(NamedTuple):
    """What METADATA says about a distribution; empty where it says nothing."""

    name: str = ""
    version: str = ""
    requirements: tuple[str, ...] = ()


def canonical(distribution: str) -> str:
    """A distribution's name as package indexes compare it: ``Delegraph_TOSA`` is ``delegraph-tosa``."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def copies() -> dict[str, list[Distribution]]:
    """Canonical name -> the installed copies of that distribution; the first one on the path is the one that counts."""
    found: dict[str, list[Distribution]] = {}
    for distribution in importlib_metadata.distributions(path=installed_path()):
        found.setdefault(canonical(name_and_version(distribution)[0]), []).append(distribution)
    return found


def name_and_version(distribution: Distribution) -> tuple[str, str]:
    """Name and version from the name of the distribution's folder.

    METADATA is read only if that says nothing, as in the ``EGG-INFO`` of an egg.
    """
    folder = os.path.basename(str(getattr(distribution, "_path", "")))
    name, _, version = folder.rpartition(".")[0].partition("-")
    if name:
        return name, version
    try:
        found = head(distribution)
    except Damaged:
        found = Head()
    return found.name or os.path.basename(place(distribution)), found.version


def place(distribution: Distribution) -> str:
    """The folder in which the distribution is installed."""
    return str(distribution.locate_file(""))


def head(distribution: Distribution) -> Head:
    """The head of METADATA (of PKG-INFO in old formats), without its body, the readme. Raises Damaged."""
    for file in ("METADATA", "PKG-INFO"):
        content = _content(distribution, file)
        if content is not None:
            lines = _text(content.replace(b"\r\n", b"\n").partition(b"\n\n")[0], file).split("\n")
            fields = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
            first = dict(reversed(fields))
            requirements = tuple(value for name, value in fields if name == "Requires-Dist")
            return Head(first.get("Name", ""), first.get("Version", ""), requirements)
    return Head()


def version(name: str, installed: dict[str, list[Distribution]]) -> str | None:
    """The version of the distribution ``name`` among ``installed``, which ``copies()`` gave.

    None if it is not there.
    """
    first, *_ = installed.get(canonical(name), [None])
    if first is None:
        return None
    try:
        return head(first).version or name_and_version(first)[1]
    except Damaged:
        return name_and_version(first)[1]


# --- entry points -----------------------------------------------------------------------------------------------------


def entry_points_of(distribution: Distribution) -> list[EntryPoint]:
    """The entry points of a distribution in our group. Raises Damaged, unless the file has nothing of ours anyway."""
    file = "entry_points.txt"
    content = _content(distribution, file)
    if content is None or f"[{PROJECT}".encode() not in content:  # known without parsing anything
        return []
    made: dict[str, EntryPoint] = {}
    for line in _lines_of_group(_text(content, file)):
        name, _, value = (part.strip() for part in line.partition("="))
        # importlib-metadata 9, the last for Python 3.10, refuses to make an entry point of anything else.
        if not name or not EntryPoint.pattern.match(value) or name in made:
            raise Damaged(f"{file} has a line that is no `name = module`, or is there twice: {line[:100]!r}")
        made[name] = EntryPoint(name, value, PROJECT)
    if len(made) > MOST_ENTRY_POINTS:
        raise Damaged(f"{file} has {len(made)} entry points for {PROJECT}, more than {MOST_ENTRY_POINTS}")
    return list(made.values())


def _lines_of_group(text: str) -> Iterator[str]:
    """The lines of our group, without comments."""
    group = ""
    for line in map(str.strip, text.split("\n")):
        if line.startswith("["):
            if not line.endswith("]"):
                raise Damaged(f"entry_points.txt has a group without its closing bracket: {line[:100]!r}")
            group = line[1:-1]
        elif line and not line.startswith("#") and group == PROJECT:
            yield line


# --- files ------------------------------------------------------------------------------------------------------------


def _text(content: bytes, file: str) -> str:
    """The content as text; Damaged if it is too large, or no text."""
    if len(content) > MOST_BYTES:
        raise Damaged(f"{file} is larger than {MOST_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as e:
        raise Damaged(f"{file} is no text: {e}") from e


def _content(distribution: Distribution, file: str) -> bytes | None:
    """The first MOST_BYTES of a file that pip wrote, and one byte more if it is longer.

    None if there is no such file.
    """
    folder = getattr(distribution, "_path", None)
    try:
        if not isinstance(folder, Path):  # it is in an archive, or where another finder keeps it
            text = distribution.read_text(file)
            return None if text is None else text.encode()[: MOST_BYTES + 1]
        # without waiting for a FIFO's writer
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(os.path.join(folder, file), flags)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Damaged(f"{file} is no regular file")
            return os.read(descriptor, MOST_BYTES + 1)
        finally:
            os.close(descriptor)
    except (FileNotFoundError, NotADirectoryError):  # old metadata may be a single file, not a folder
        return None
    except (OSError, ValueError) as e:
        raise Damaged(f"{file} cannot be read: {e}") from e
