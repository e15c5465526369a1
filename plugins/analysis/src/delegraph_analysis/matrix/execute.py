"""The one function that executors are given, wherever they run it: bytes in, bytes out."""

from __future__ import annotations

import functools
import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .forking import Lost, run_in_fork


def run(message: bytes) -> bytes:
    """Do a cell in a process of its own: JSON of its request in, JSON of how that ended
    out.
    """
    request = json.loads(message)
    try:
        found = run_in_fork(request, request["job"]["settings"]["threads"])
    except Lost:
        found = {"lost": "the process that waits for it ended"}
    return json.dumps(
        {**found, "machine": machine(), "load": _load(), "ended": _now()}
    ).encode()


@functools.cache
def machine() -> dict[str, Any]:
    """Return the facts about this machine on which figures depend."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = {
        "node": platform.node(),
        "cpu": _processor(),
        "cpus": os.cpu_count(),
        "memory": memory,
    }
    return {**found, "system": platform.platform(), "python": platform.python_version()}


def _processor() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    named = (
        line.partition(":")[2].strip()
        for line in lines
        if line.startswith("model name")
    )
    return next(named, platform.machine())


def _now() -> str:
    """In UTC, so that texts of several machines sort by time."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _load() -> float:
    """How many processes wanted a processor in the last minute, for each processor."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)
