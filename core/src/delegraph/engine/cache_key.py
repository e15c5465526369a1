"""The keys of cached answers: a hash of all that an answer may have been computed from."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
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
from .cached_result import MAGIC


def key_of_result(
    form: Form,
    backend: type[BackendDetails],
    specs: Sequence[CompileSpec],
    declared: BackendSpec,
    producer: tuple[str, str],
    fingerprint: str,
) -> str:
    """The key of a compiled partition."""
    told = [(spec.key, spec.value.hex()) for spec in specs]
    named = form.names if backend.keeps_names else None
    return key_of(backend, [form.key, named, told, producer, versions(declared.composes), fingerprint])


def key_of(kind: type, parts: Sequence[Any]) -> str:
    """A hash of ``parts``, which are JSON, of the class that answers, and of the code that has a say in the answer."""
    code = [_sources(module.partition(".")[0]) for module in (__name__, kind.__module__)]
    name = f"{kind.__module__}:{kind.__qualname__}"
    return hashlib.sha256(json.dumps([MAGIC.decode(), name, code, torch.__version__, *parts]).encode()).hexdigest()


def versions(distributions: Iterable[str]) -> list[tuple[str, str, str]]:
    """Name, version and, where it is installed from a folder that is being worked on, a hash of the Python files."""
    return [(name, *_version(name)) for name in distributions]


@cache
def _version(distribution: str) -> tuple[str, str]:
    try:
        found = importlib_metadata.distribution(distribution)
    except importlib_metadata.PackageNotFoundError:
        return "", ""
    url = json.loads(found.read_text("direct_url.json") or "{}")
    if not url.get("dir_info", {}).get("editable"):
        return found.version, ""
    return found.version, _hash([Path(url2pathname(urlparse(url["url"]).path))])


@cache
def _sources(package: str) -> str:
    """A hash of a package's Python files: of one that is being worked on, the version says little."""
    module = sys.modules[package]
    folders = sorted(map(Path, getattr(module, "__path__", ())))
    return _hash(folders or [Path(given) for given in [getattr(module, "__file__", None)] if given])


def _hash(places: Iterable[Path]) -> str:
    """A hash of Python files, and of those in folders, but for folders that are hidden."""
    digest = hashlib.sha256()
    for place in places:
        listed = sorted(place.rglob("*.py")) if place.is_dir() else [place]
        for path in listed:
            name = path.relative_to(place)
            if not any(part.startswith(".") for part in name.parts):
                digest.update(f"{name.as_posix()}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
