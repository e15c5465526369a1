"""``python -m delegraph_workers.describe BACKEND``: what this environment has of a backend, as a line of JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from delegraph import backends
from delegraph.errors import DelegraphError

from .message import PROTOCOL


def describe(name: str) -> dict[str, Any]:
    """The declaration of an installed backend, in words of JSON."""
    try:
        info = next(b for b in backends() if name in (b.name, b.backend_id, f"{b.distribution}/{b.name}"))
    except StopIteration:
        known = ", ".join(sorted(b.name for b in backends())) or "none"
        return {
            "error": f"no backend {name!r} is installed there ({known}), and register() is for its own process alone"
        }
    if not info.usable:
        return {"error": f"backend {name!r} is {info.status} there: {info.error}"}
    kinds = {kind.__name__: kind for kind in (str, int, float, bool)}
    options = [
        [o.name, next(k for k, v in kinds.items() if v is o.type), o.default, list(o.choices), o.help]
        for o in info.options
    ]
    return {
        "protocol": PROTOCOL,
        "name": info.full_name,
        "backend_id": info.backend_id,
        "api": info.api,
        "summary": info.summary,
        "distribution": info.distribution,
        "version": info.version,
        "options": options,
        "runtime": info.has_runtime,
        "prefix": sys.prefix,
        "path": [p for p in sys.path if p],
    }


if __name__ == "__main__":
    try:
        told = describe(sys.argv[1])
    except DelegraphError as e:
        told = {"error": str(e)}
    sys.stdout.write(f"{json.dumps(told)}\n")
