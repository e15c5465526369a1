"""``python -m delegraph_workers.describe BACKEND``: what this environment has of a
backend, as a line of JSON.
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
    """The declaration of an installed backend, in words of JSON."""
    try:
        info = next(
            b
            for b in backends()
            if name in (b.name, b.backend_id, f"{b.distribution}/{b.name}")
        )
    except StopIteration:
        known = ", ".join(sorted(b.name for b in backends())) or "none"
        return {
            "error": (
                f"no backend {name!r} is installed there ({known}), and register() is"
                " for its own process alone"
            )
        }
    if not info.usable:
        return {"error": f"backend {name!r} is {info.status} there: {info.error}"}
    kinds = {kind.__name__: kind for kind in (str, int, float, bool, list)}
    options = [
        [
            o.name,
            next(k for k, v in kinds.items() if v is o.type),
            o.default,
            list(o.choices),
            o.help,
        ]
        for o in info.spec.options
    ]
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
        "formats": [
            row for suffix in info.formats if (row := _format(suffix)) is not None
        ],
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
"""Parameters of these methods that formats may have or not, and callers look for."""


def _format(suffix: str) -> dict[str, Any] | None:
    """The format of a suffix; None for one that holds whole programs.

    One that cannot be used says why.
    """
    try:
        kind: Any = default_registry().get_format(f"a{suffix}")
    except DelegraphError as e:
        return {"suffix": suffix, "error": str(e)}
    if not issubclass(kind, DelegateFormat):
        return None
    # what DelegateFormat has is done where the delegate is, unless the format overrides
    # it
    own = [
        name
        for name in ABILITIES
        if inspect.getattr_static(kind, name)
        is not inspect.getattr_static(DelegateFormat, name)
    ]
    parameters = {
        name: inspect.signature(getattr(kind, name)).parameters for name in own
    }
    return {
        "suffix": suffix,
        "backend_id": kind.backend_id,
        "holds_named_data": kind.holds_named_data,
        "abilities": {
            name: [each for each in _OPTIONAL if each in parameters[name]]
            for name in own
        },
    }


if __name__ == "__main__":
    try:
        told = describe(sys.argv[1])
    except DelegraphError as e:
        told = {"error": str(e)}
    sys.stdout.write(f"{json.dumps(told)}\n")
