"""The keys of cached results: a hash of everything that a result may depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from ..backend import BackendDetails, CompileSpec
from ..exported.work import Form
from ..io.installed import code_of
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
    known: Any = backend  # a class that stands for a backend of another environment says what is installed there
    code = known.installed() if declared.origin else code_of(backend, declared.composes, declared.independent_of)
    settings = [(spec.key, spec.value.hex()) for spec in specs]
    names = form.names if backend.keeps_names else None
    return key_of(backend, [form.key, names, settings, producer, code, fingerprint])


def key_of(kind: type, parts: Sequence[Any]) -> str:
    """A hash of ``parts``, values that JSON can express, and of the name of the class that computes the result."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    return hashlib.sha256(json.dumps([MAGIC.decode(), name, *parts]).encode()).hexdigest()
