"""What is installed of the code that a result depends on, for the keys of caches."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

import torch

__all__ = ["code_of"]

_DELEGRAPH = ("delegraph", "delegraph_programs", "delegraph_workers")
"""The packages that make partitions and their canonical programs."""


def code_of(
    kind: type, composes: Iterable[str] = (), independent_of: Collection[str] = ()
) -> list[Any]:
    """The code that results of the class ``kind`` depend on, as a JSON value.

    It has a hash of the Python files of the class's package, one of those of delegraph,
    torch's version, and name, version and a hash (see ``_versions``) of each of the
    distributions ``composes``. ``independent_of``: "torch", "delegraph" or both, which
    are left out.
    """
    own = _sources(kind.__module__.partition(".")[0])
    delegraph = (
        None
        if "delegraph" in independent_of
        else [_sources(package) for package in _DELEGRAPH]
    )
    return [
        own,
        delegraph,
        None if "torch" in independent_of else torch.__version__,
        _versions(composes),
    ]


def _versions(distributions: Iterable[str]) -> list[tuple[str, str, str]]:
    """(name, version, hash of code) of each distribution; a version of "" means that it
    is not installed.

    The hash is of the Python files of an editable installation, and "" otherwise: there
    the version says enough.
    """
    return [(name, *_version(name)) for name in distributions]


@cache
def _version(distribution: str) -> tuple[str, str]:
    """The version of a distribution, and a hash of its code if it is an editable
    installation, else "".

    Two empty texts if the distribution is not installed.
    """
    try:
        installed = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return "", ""
    url = json.loads(installed.read_text("direct_url.json") or "{}")
    if not url.get("dir_info", {}).get("editable"):
        return installed.version, ""
    return installed.version, _hash([Path(url2pathname(urlparse(url["url"]).path))])


@cache
def _sources(package: str) -> str:
    """A hash of a package's Python files, since a package that is being edited keeps
    its version.
    """
    module = sys.modules[package]
    # none if it is a single file
    folders = sorted(map(Path, getattr(module, "__path__", ())))
    return _hash(
        folders or [Path(file) for file in [getattr(module, "__file__", None)] if file]
    )


def _hash(places: Iterable[Path]) -> str:
    """A hash of the Python files ``places``, or in folders ``places``; hidden files and
    folders are left out.
    """
    digest = hashlib.sha256()
    for place in places:
        for path in sorted(_python_files(place)) if place.is_dir() else [place]:
            name = path.relative_to(place).as_posix()
            digest.update(
                f"{name}\0".encode() + hashlib.sha256(_content(path)).digest()
            )
    return digest.hexdigest()


def _python_files(folder: Path) -> Iterator[Path]:
    """The Python files in a folder.

    Hidden folders are not entered: virtual environments are large.
    """
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (
            Path(place, name)
            for name in files
            if name.endswith(".py") and not name.startswith(".")
        )


def _content(path: Path) -> bytes:
    """The content of a file; b"" for one that is gone by now, or cannot be read, which
    gives another key.
    """
    try:
        return path.read_bytes()
    except OSError:
        return b""
