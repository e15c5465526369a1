"""Call several programs in turns, and measure their times and the memory of first calls."""

from __future__ import annotations

import ctypes
import gc
import re
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from delegraph.errors import DelegraphError

# files of Linux: the memory of this process, and a file that resets its peak
_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


@dataclass
class Caller:
    """A program with its measured calls; ``call`` runs it once and returns the seconds.

    ``first_seconds`` is the time of the first call, which also loads the program.
    ``peak_bytes`` is the growth of the process's peak memory in that call; None without
    Linux. ``seconds`` are the times of later calls. ``error`` ended the calls, if any.
    """

    call: Callable[[], float]
    first_seconds: float | None = None
    peak_bytes: int | None = None
    seconds: list[float] = field(default_factory=list)
    error: DelegraphError | None = None

    @property
    def median(self) -> float | None:
        """Return the median of later calls; None without any, or after an error."""
        if not self.seconds or self.error is not None:
            return None
        return statistics.median(self.seconds)


def call_in_turns(callers: Iterable[Caller], runs: int) -> None:
    """Call each program once, then all of them ``runs`` times in turns.

    Other load on the machine then slows all programs by about the same factor.
    """
    running = list(callers)
    for caller in running:
        try:
            caller.first_seconds, caller.peak_bytes = _call_with_peak(caller.call)
        except DelegraphError as e:  # such as NoRuntime
            caller.error = e
    for _ in range(runs):
        for caller in running:
            try:
                if caller.error is None:
                    caller.seconds.append(caller.call())
            except DelegraphError as e:
                caller.error = e


def _call_with_peak(call: Callable[[], float]) -> tuple[float, int | None]:
    """Return the result of ``call``, and the growth of peak memory in bytes."""
    gc.collect()
    try:
        # return free memory to the system, so that using it again counts
        ctypes.CDLL(None).malloc_trim(0)
        _CLEAR_REFS.write_text("5")  # set the peak to the present memory
        before = _resident("VmRSS")
    except (OSError, AttributeError, TypeError):
        # another system than Linux, or one that does not allow it
        return call(), None
    seconds = call()
    return seconds, max(_resident("VmHWM") - before, 0)  # VmHWM is the peak of VmRSS


def _resident(name: str) -> int:
    """Return a field of /proc/self/status in bytes; raise OSError if it is missing."""
    found = re.search(rf"{name}:\s+(\d+) kB", _STATUS.read_text())
    if found is None:
        raise OSError(f"{_STATUS} has no {name}")
    return 1024 * int(found[1])
