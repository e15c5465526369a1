"""Define the function that executors run, maybe on other machines: bytes in, bytes out."""

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
    """Do a cell in a process of its own.

    ``message``: the request as JSON, see ``Work._message``. Returns JSON: the result of
    ``ForkingProcess.run`` or ``lost``, with facts about the machine.
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
    return {
        "node": platform.node(),
        "cpu": _processor(),
        "cpus": os.cpu_count(),
        "memory": memory,
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _now() -> str:
    """Return the time in UTC, so that texts of several machines sort by time."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _load() -> float:
    """Return the average number of ready processes per processor in the last minute."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)
