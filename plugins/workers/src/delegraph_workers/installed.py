"""Hash the installed code that results depend on, for the keys of caches."""

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
    """Return the code that results of the class ``kind`` depend on, as a value of JSON.

    It has hashes of the Python files of the class's package and of delegraph, and the
    version of torch. For each distribution in ``composes``, it has name, version and
    hash. ``independent_of`` names "torch" or "delegraph" to leave them out.
    """
    delegraph = None
    if "delegraph" not in independent_of:
        delegraph = [_sources(package) for package in _DELEGRAPH]
    return [
        _sources(kind.__module__.partition(".")[0]),
        delegraph,
        None if "torch" in independent_of else torch.__version__,
        [(name, *_version(name)) for name in composes],
    ]


@cache
def _version(distribution: str) -> tuple[str, str]:
    """Return the version of a distribution, and a hash of its code.

    The hash is "" unless the installation is editable: otherwise the version is enough.
    Both are "" if the distribution is not installed.
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
    """Return a hash of a package's Python files: edits do not change its version."""
    module = sys.modules[package]
    roots = sorted(map(Path, getattr(module, "__path__", ())))
    file = getattr(module, "__file__", None)
    if not roots and file:  # a module of a single file
        roots = [Path(file)]
    return _hash(roots)


def _hash(roots: Iterable[Path]) -> str:
    """Return a hash of Python files, and of those in folders.

    Hidden files and folders are left out.
    """
    digest = hashlib.sha256()
    for root in roots:
        paths = sorted(_python_files(root)) if root.is_dir() else [root]
        for path in paths:
            name = path.relative_to(root).as_posix()
            digest.update(f"{name}\0".encode())
            digest.update(hashlib.sha256(_content(path)).digest())
    return digest.hexdigest()


def _python_files(folder: Path) -> Iterator[Path]:
    """Yield the Python files in a folder.

    Hidden folders are not entered: virtual environments are large.
    """
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if name.endswith(".py") and not name.startswith("."):
                yield Path(root, name)


def _content(path: Path) -> bytes:
    """Return the content of a file; b"" if it was removed or cannot be read.

    The key then differs from the key of the file.
    """
    try:
        return path.read_bytes()
    except OSError:
        return b""
