"""Describe an installed backend as a line of JSON.

Run as ``python -m delegraph_workers.describe BACKEND``.
"""

from __future__ import annotations

import inspect
import json
import sys
from importlib import metadata
from typing import Any

from delegraph import backends, default_registry
from delegraph.errors import DelegraphError
from delegraph.formats import DelegateFormat

from .message import PROTOCOL


def describe(name: str) -> dict[str, Any]:
    """Return the declaration of an installed backend as values of JSON."""
    matching = [
        info
        for info in backends()
        if name in (info.name, info.backend_id, f"{info.distribution}/{info.name}")
    ]
    if not matching:
        known = ", ".join(sorted(info.name for info in backends())) or "none"
        return {
            "error": (
                f"no backend {name!r} is installed in that environment (installed:"
                f" {known}); register() works for its own process only"
            )
        }
    info = matching[0]
    if not info.usable:
        return {
            "error": f"backend {name!r} is {info.status} in that environment:"
            f" {info.error}"
        }
    options = []
    for option in info.spec.options:
        kind = option.type.__name__
        choices = list(option.choices)
        options.append([option.name, kind, option.default, choices, option.help])
    formats = [_format(suffix) for suffix in info.formats]
    return {
        "protocol": PROTOCOL,
        "workers": metadata.version("delegraph-workers"),
        "name": info.full_name,
        "backend_id": info.backend_id,
        "api": info.spec.api,
        "summary": info.spec.summary,
        "distribution": info.distribution,
        "version": info.version,
        "options": options,
        "runtime": info.has_runtime,
        "native": default_registry().native_code(info.full_name),
        "quantizer": info.has_quantizer,
        "formats": [row for row in formats if row is not None],
        "prefix": sys.prefix,
        "path": [p for p in sys.path if p],
    }


ABILITIES = (
    "why_not",
    "serialize",
    "files",
    "write",
    "read",
    "load_in",
    "quantization",
    "named_data",
    "blobs",
    "inspect",
    "summarize",
    "sample",
    "run",
    "page",
    "node_of",
    "verify",
)
"""The methods of file formats that work across environments (``serve_formats``)."""
_OPTIONAL = "method", "max_memory", "max_iterations"
"""Optional parameters of these methods, which callers look for."""


def _format(suffix: str) -> dict[str, Any] | None:
    """Return the format of a suffix; None for a format of whole programs.

    A format that cannot be used has its "error".
    """
    try:
        kind: Any = default_registry().get_format(f"a{suffix}")
    except DelegraphError as e:
        return {"suffix": suffix, "error": str(e)}
    if not issubclass(kind, DelegateFormat):
        return None
    # methods that a format does not override run in the user's process
    abilities = {}
    for name in ABILITIES:
        base = inspect.getattr_static(DelegateFormat, name)
        if inspect.getattr_static(kind, name) is not base:
            parameters = inspect.signature(getattr(kind, name)).parameters
            abilities[name] = [each for each in _OPTIONAL if each in parameters]
    return {
        "suffix": suffix,
        "backend_id": kind.backend_id,
        "holds_named_data": kind.holds_named_data,
        "abilities": abilities,
    }


if __name__ == "__main__":
    try:
        description = describe(sys.argv[1])
    except DelegraphError as e:
        description = {"error": str(e)}
    sys.stdout.write(f"{json.dumps(description)}\n")
