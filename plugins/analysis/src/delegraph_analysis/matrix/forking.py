"""Start processes that fork for each cell, and reuse them for later cells.

``process`` is the code that runs in them.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from delegraph.errors import DelegraphError

START_LIMIT = 300.0
"""Seconds in which a new process must be ready, or begin a cell."""
_LATE = 60.0
"""Seconds after its time limit in which the answer of a cell must arrive."""


class Lost(Exception):
    """The process that forked for the cell has ended, so there is no answer."""


class ForkingProcess:
    """One process that has imported torch, and does one cell at a time in a fork."""

    def __init__(self, threads: int) -> None:
        """Start the process, with ``threads`` of PyTorch; ``run`` waits until it is ready."""
        # without "", which would import modules from the working directory
        path = [p for p in sys.path if isinstance(p, str) and p]
        begin = (
            f"import sys; sys.path[:] = {path!r}; from"
            " delegraph_analysis.matrix.process import main; main()"
        )
        own = {"OMP_NUM_THREADS": str(threads), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", begin],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={**os.environ, **own},
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests = self._process.stdin
        self._answers = self._process.stdout
        self._rest = b""
        self._ready = False
        self.pid = self._process.pid

    def run(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Do a cell; return the result of ``process._supervised``.

        Raises Lost if the process ends, DelegraphError if it cannot start.
        """
        self.await_ready()
        pid = None
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
            pid = self._line(START_LIMIT)["pid"]
            return self._line(request["time_limit"] + _LATE)
        except (Lost, BrokenPipeError):
            # the system kills the cell with its parent; this kills its descendants
            if pid is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
            self.close()
            raise Lost from None

    def await_ready(self) -> None:
        """Wait until the process has imported the modules for cells.

        Raises DelegraphError if it ends before that.
        """
        if self._ready:
            return
        try:
            self._line(START_LIMIT)
        except Lost:
            text = (
                "a worker process of the matrix ended while it started, with exit code"
                f" {self._process.wait()}"
            )
            hint = f"try: {sys.executable} -c 'import torch, delegraph_analysis'"
            raise DelegraphError("matrix/not-started", text, hint=hint) from None
        self._ready = True

    def _line(self, seconds: float) -> dict[str, Any]:
        """Return the next line of its output.

        Raises Lost at the end of the output, or if no line arrives in time.
        """
        until = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                left = until - time.monotonic()
                if left <= 0:
                    raise Lost
                if selector.select(min(left, 3600.0)):
                    data = os.read(self._answers.fileno(), 1 << 20)
                    if not data:
                        raise Lost
                    self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        content: dict[str, Any] = json.loads(line)
        return content

    def stop(self) -> None:
        """Let the process end its cell and exit. The thread in ``run`` gets Lost."""
        with contextlib.suppress(OSError):
            self._requests.close()
        if not self._ready:  # it still imports torch, and has no cell
            self._process.kill()

    def close(self) -> None:
        """End the process and its cell."""
        for pipe in (self._requests, self._answers):
            with contextlib.suppress(OSError):
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSING)
        self._process.kill()
        self._process.wait()


_CLOSING = 10.0
"""Seconds in which a process must end its cell and exit."""


class _Processes:
    """The busy processes, and the waiting ones by their number of PyTorch threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = dict[int, list[ForkingProcess]]()
        self._busy = set[ForkingProcess]()
        self._owner = os.getpid()

    def take(self, threads: int) -> ForkingProcess:
        """Return a waiting process, or a new one."""
        with self._lock:
            waiting = self._waiting.get(threads)
            # after a fork of this process, the waiting ones belong to the other copy
            if waiting and self._owner == os.getpid():
                process = waiting.pop()
            else:
                process = ForkingProcess(threads)
            self._busy.add(process)
        return process

    def give_back(self, process: ForkingProcess, threads: int) -> None:
        """Keep a process that is no longer busy."""
        with self._lock:
            self._busy.discard(process)
            self._waiting.setdefault(threads, []).append(process)

    def lose(self, process: ForkingProcess) -> None:
        """Forget a busy process, which has ended."""
        with self._lock:
            self._busy.discard(process)

    def close(self) -> None:
        """End the waiting processes, and let the others end their cells."""
        waiting: list[ForkingProcess] = []
        busy: list[ForkingProcess] = []
        with self._lock:
            if self._owner == os.getpid():
                for listed in self._waiting.values():
                    waiting += listed
                busy += self._busy
            self._waiting.clear()
        for process in busy:
            process.stop()
        for process in waiting:
            process.close()


_PROCESSES = _Processes()
atexit.register(_PROCESSES.close)


def run_in_fork(request: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """Do a cell in a waiting process, or in a new one.

    Raises Lost if that process ends.
    """
    process = _PROCESSES.take(threads)
    try:
        answer = process.run(request)
    except Lost:
        _PROCESSES.lose(process)
        raise
    except BaseException:
        # such as KeyboardInterrupt: a late answer must not reach the next cell
        _PROCESSES.lose(process)
        process.close()
        raise
    give_back(process, threads)
    return answer


def give_back(process: ForkingProcess, threads: int) -> None:
    """Keep a process with this number of PyTorch threads for a later cell."""
    _PROCESSES.give_back(process, threads)


def close_all() -> None:
    """End all processes for cells. Threads that wait for a cell get Lost."""
    _PROCESSES.close()
