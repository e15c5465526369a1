"""Calls of several programs in turns: what each takes the first time and later, and the
memory of its first call.
"""

from __future__ import annotations

import ctypes
import gc
import re
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from delegraph.errors import DelegraphError

_STATUS = Path("/proc/self/status")
_PEAK = Path("/proc/self/clear_refs")


@dataclass
class Caller:
    """A program that is called. ``call`` calls it once and returns the seconds of that.

    ``first_seconds``: of the call that loads what there is to load. ``peak_bytes``: by
    how much that call raised the peak of this process's resident memory above what it
    had before; None if the system does not tell (only Linux does). ``seconds``: of the
    calls after it. ``error``: what ended the calls, None if nothing did.
    """

    call: Callable[[], float]
    first_seconds: float | None = None
    peak_bytes: int | None = None
    seconds: list[float] = field(default_factory=list)
    error: DelegraphError | None = None

    @property
    def median(self) -> float | None:
        """None if there was no call after the first, or if one failed."""
        return (
            statistics.median(self.seconds)
            if self.seconds and self.error is None
            else None
        )


def call_in_turns(callers: Iterable[Caller], runs: int) -> None:
    """Call each once, then all of them ``runs`` times in turns, so that what slows the
    machine slows all of them.
    """
    running = list(callers)
    for caller in running:
        try:
            caller.first_seconds, caller.peak_bytes = _raised_peak(caller.call)
        except DelegraphError as e:  # such as NoRuntime
            caller.error = e
    for _ in range(runs):
        for caller in running:
            try:
                if caller.error is None:
                    caller.seconds.append(caller.call())
            except DelegraphError as e:
                caller.error = e


def _raised_peak(call: Callable[[], float]) -> tuple[float, int | None]:
    """The result of ``call``, and the bytes by which it raised the peak of resident
    memory above what there was.
    """
    gc.collect()
    try:
        # what is free goes back to the system, so that using it again shows
        ctypes.CDLL(None).malloc_trim(0)
        _PEAK.write_text("5")  # the peak starts again from now
        before = _resident("VmRSS")
    except (OSError, AttributeError, TypeError):
        # another system than Linux, or one that does not allow it
        return call(), None
    seconds = call()
    return seconds, max(_resident("VmHWM") - before, 0)


def _resident(name: str) -> int:
    """A field of /proc/self/status, in bytes. Raises OSError if it is not there."""
    found = re.search(rf"{name}:\s+(\d+) kB", _STATUS.read_text())
    if found is None:
        raise OSError(f"{_STATUS} has no {name}")
    return 1024 * int(found[1])
