"""The keys of cached results: a hash of everything that a result may depend on."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

import importlib_metadata
import torch

from ..backend import BackendDetails, CompileSpec
from ..exported.work import Form
from ..plugin import BackendSpec
from ..work import MAGIC


def key_of_result(
    form: Form,
    backend: type[BackendDetails],
    specs: Sequence[CompileSpec],
    declared: BackendSpec,
    producer: tuple[str, str],
    fingerprint: str,
) -> str:
    """The key of a compiled partition.

    ``form``: the partition's program. ``specs``: the settings for the backend. ``declared``: the declaration of the
    backend. ``producer``: its distribution and version. ``fingerprint``: what the backend's ``fingerprint`` returned
    for ``specs``.
    """
    settings = [(spec.key, spec.value.hex()) for spec in specs]
    names = form.names if backend.keeps_names else None
    return key_of(backend, [form.key, names, settings, producer, versions(declared.composes), fingerprint])


def key_of(kind: type, parts: Sequence[Any]) -> str:
    """A hash of ``parts``, values that JSON can express, and of what else every result depends on.

    That is the name of the class ``kind`` that computes the result, the code of the package of ``kind`` and of
    delegraph, and the version of torch.
    """
    code = [_sources(module.partition(".")[0]) for module in (__name__, kind.__module__)]
    name = f"{kind.__module__}:{kind.__qualname__}"
    return hashlib.sha256(json.dumps([MAGIC.decode(), name, code, torch.__version__, *parts]).encode()).hexdigest()


def versions(distributions: Iterable[str]) -> list[tuple[str, str, str]]:
    """(name, version, hash of code) of each distribution; a version of "" means that it is not installed.

    The hash is of the Python files of an editable installation, and "" otherwise: there the version says enough.
    """
    return [(name, *_version(name)) for name in distributions]


@cache
def _version(distribution: str) -> tuple[str, str]:
    """The version of a distribution, and a hash of its code if it is an editable installation, else "".

    Two empty texts if the distribution is not installed.
    """
    try:
        installed = importlib_metadata.distribution(distribution)
    except importlib_metadata.PackageNotFoundError:
        return "", ""
    url = json.loads(installed.read_text("direct_url.json") or "{}")
    if not url.get("dir_info", {}).get("editable"):
        return installed.version, ""
    return installed.version, _hash([Path(url2pathname(urlparse(url["url"]).path))])


@cache
def _sources(package: str) -> str:
    """A hash of a package's Python files, since a package that is being edited keeps its version."""
    module = sys.modules[package]
    folders = sorted(map(Path, getattr(module, "__path__", ())))  # none if it is a single file
    return _hash(folders or [Path(file) for file in [getattr(module, "__file__", None)] if file])


def _hash(places: Iterable[Path]) -> str:
    """A hash of the Python files ``places``, or in folders ``places``; hidden files and folders are left out."""
    digest = hashlib.sha256()
    for place in places:
        for path in sorted(_python_files(place)) if place.is_dir() else [place]:
            name = path.relative_to(place).as_posix()
            digest.update(f"{name}\0".encode() + hashlib.sha256(_content(path)).digest())
    return digest.hexdigest()


def _python_files(folder: Path) -> Iterator[Path]:
    """The Python files in a folder. Hidden folders are not entered: virtual environments are large."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place, name) for name in files if name.endswith(".py") and not name.startswith("."))


def _content(path: Path) -> bytes:
    """The content of a file; b"" for one that is gone by now, or cannot be read, which gives another key."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
