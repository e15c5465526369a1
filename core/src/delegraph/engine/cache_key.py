"""The key of a cached result: a hash of everything that it may depend on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backend import BackendDetails, CompileSpec
from ..exported.work import Form
from ..io.installed import code_of
from ..plugin import BackendSpec
from ..work import key_of


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
