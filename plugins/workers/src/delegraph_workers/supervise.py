"""Start, watch and stop processes that compile."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from delegraph.errors import DelegraphError, Unsupported

from .config import variables_there
from .failures import describe
from .message import PROTOCOL, pack

START_LIMIT = 300.0
"""Seconds until a compile begins: Python starts, torch and the backend are imported,
and the partition is read.
"""
_SHOWN_LINES = 5
_SHOWN_BYTES = 65536
_LONGEST_LINE = 65536
_LOOK = 1.0
"""Seconds after which the supervisor checks that a silent worker lives.

Its child processes may hold its end of the pipe, which then stays open.
"""
_DYING = 5.0
"""Seconds that a process gets to end after a request, or after closing its descriptors.
"""
_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep


@dataclass(frozen=True)
class Limits:
    """Limits of one partition: ``seconds``, and ``memory`` in bytes; None for no limit."""

    seconds: float | None = None
    memory: int | None = None


class WorkerProcess:
    """A process that compiles one partition at a time.

    ``python`` is the interpreter of another environment that has ``delegraph-workers``.
    Without it, the worker finds the same modules as this process. ``folder`` holds
    jobs, answers and output.
    """

    def __init__(self, folder: Path, python: str | None = None) -> None:
        if os.name != "posix":
            hint = (
                "Linux and macOS can, and so can the Windows Subsystem for Linux; in"
                " this process: without isolation"
            )
            raise DelegraphError(
                "workers/not-started",
                "workers cannot be started on this system",
                hint=hint,
            )
        self._folder = folder
        self.python = python
        self._output = tempfile.TemporaryFile(dir=folder)
        (requests, asks), (tells, answers), (lifeline, self._lifeline) = (
            os.pipe(),
            os.pipe(),
            os.pipe(),
        )
        numbers = requests, answers, lifeline
        command = (
            [python, "-m", "delegraph_workers.worker", *map(str, numbers)]
            if python
            else []
        )
        environment = {
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            **(variables_there(folder) if python else os.environ),
        }
        if not python:
            path = [p for p in sys.path if isinstance(p, str)]
            begin = (
                f"import sys; sys.path[:] = {path!r}; from delegraph_workers.worker"
                f" import main; main(*{numbers})"
            )
            command = [sys.executable, "-c", begin]
        command[1:1] = ["-u", "-X", "faulthandler"]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=numbers,
                env=environment,
                cwd=folder,  # nothing is imported from the working directory
                start_new_session=True,  # so that what it starts can be ended with it
            )
        except OSError as e:
            for number in (asks, tells, self._lifeline):
                os.close(number)
            self._output.close()
            raise DelegraphError(
                "workers/not-started", f"no worker could be started: {command[0]}: {e}"
            ) from e
        finally:
            for number in numbers:
                os.close(number)
        self._asks = os.fdopen(asks, "w", buffering=1)
        self._tells = tells
        self._lines = b""
        self._ready = False
        self._at_first = 0
        self.pid = self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def prepare(self, backends: Sequence[str]) -> None:
        """Let the worker import backends while it is idle."""
        # it died: the next job meets another one
        with contextlib.suppress(BrokenPipeError):
            self._asks.write(json.dumps({"prepare": list(backends)}) + "\n")

    def run(self, job: bytes, limits: Limits) -> tuple[bytes, str]:
        """Do a job; return the answer and the printed text.

        Raises Unsupported, with how the process ended, if it does not survive the job
        or a limit stops it.
        """
        number = time.monotonic_ns()
        paths = [
            self._folder / f"{self.pid}-{number}.{kind}"
            for kind in ("job", "answer", "answer.partial")
        ]
        request = {
            "job": str(paths[0]),
            "answer": str(paths[1]),
            "memory_limit": limits.memory,
        }
        try:
            if not self._ready:
                self._expect_ready()
            place = os.fstat(self._output.fileno()).st_size
            paths[0].write_bytes(job)
            with contextlib.suppress(BrokenPipeError):
                self._asks.write(
                    json.dumps({**request, "directory": _directory()}) + "\n"
                )
            if self._await("begun", START_LIMIT, place):
                self._await("done", limits.seconds, place)
            if not paths[1].exists():
                raise self._refusal(
                    "reported that it was done, but left no answer", place
                )
            return paths[1].read_bytes(), self._printed(place)
        except BaseException:
            # such as KeyboardInterrupt: what it says later is no answer to the next job
            self.stop()
            raise
        finally:
            for path in paths:
                path.unlink(missing_ok=True)

    def _expect_ready(self) -> None:
        """Wait until the worker has started. Raises DelegraphError if it cannot."""
        try:
            line = self._line(time.monotonic() + START_LIMIT)
        except _Ended:
            why = _last_lines(self._printed(0)) or f"exit code {self._exit_code()}"
            hint = (
                "its environment has to have delegraph and delegraph-workers"
                if self.python
                else None
            )
            raise DelegraphError(
                "workers/not-started",
                f"a worker ended while it started: {why}",
                hint=hint,
            ) from None
        except (_TooLong, _Nonsense) as e:
            how = (
                f"said {e}"
                if isinstance(e, _Nonsense)
                else f"had not started after {START_LIMIT:g} s"
            )
            text = (
                f"a worker {how}; it printed:"
                f" {_last_lines(self._printed(0)) or 'nothing'}"
            )
            raise DelegraphError("workers/not-started", text) from None
        if line.get("ready") != PROTOCOL:
            text = (
                f"a worker speaks protocol {line.get('ready')}, and {PROTOCOL} is known"
                " here"
            )
            raise DelegraphError(
                "workers/not-started",
                text,
                hint="install the same delegraph-workers there",
            )
        self._ready, self._at_first = True, data_size(self.pid)

    @property
    def grown(self) -> int:
        """Return the growth of its memory since it was ready, in bytes."""
        return data_size(self.pid) - self._at_first

    def _await(self, what: str, limit: float | None, place: int) -> bool:
        """Wait for a line with ``what``; return False if the job ends before with an
        error.

        Raises Unsupported if the process ends before, takes too long, or sends another
        line.
        """
        start = time.monotonic()
        try:
            line = self._line(None if limit is None else start + limit)
            if what not in line and "done" not in line:
                raise _Nonsense(f"{line!r:.80}")
        except _TooLong:
            assert limit is not None
            self._abort()
            raise self._refusal(
                f"was stopped after {limit:g} s", place, "allow more with time_limit"
            ) from None
        except _Nonsense as e:
            raise self._refusal(
                f"was stopped, since it sent {e} instead of its progress",
                place,
            ) from None
        except _Ended:
            code = self._exit_code()
            how = (
                f"ended with exit code {code}"
                if code >= 0
                else f"was killed by {_signal_name(-code)}"
            )
            raise self._refusal(
                f"{how} after {time.monotonic() - start:.1f} s", place
            ) from None
        return what in line

    def _refusal(self, how: str, place: int, hint: str | None = None) -> Unsupported:
        printed = _last_lines(self._printed(place))
        text = f"its process {how}" + (f"; it printed: {printed}" if printed else "")
        return Unsupported("unsupported", text, hint=hint)

    def _line(self, until: float | None) -> dict[str, Any]:
        """Return the worker's next line.

        Raises _Ended at its end, _TooLong after the time, _Nonsense for an invalid
        line.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._tells, selectors.EVENT_READ)
            while b"\n" not in self._lines:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise _TooLong
                if len(self._lines) > _LONGEST_LINE:
                    raise _Nonsense(f"{self._lines[:40]!r}...")
                # asked first: what a worker said before it died is still in the pipe
                is_alive = self.alive
                patience = _LOOK if left is None else min(_LOOK, left)
                if not selector.select(patience if is_alive else 0):
                    if is_alive:
                        continue
                    raise _Ended
                data = os.read(self._tells, 4096)
                if not data:
                    raise _Ended
                self._lines += data
        line, _, self._lines = self._lines.partition(b"\n")
        try:
            told = json.loads(line)
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict):
            raise _Nonsense(f"{line!r:.80}")
        return told

    def _printed(self, place: int) -> str:
        """Return the end of the process's output from byte ``place`` on."""
        end = os.fstat(self._output.fileno()).st_size
        place = max(place, end - _SHOWN_BYTES)
        return os.pread(self._output.fileno(), end - place, place).decode(
            "utf-8", "replace"
        )

    def _exit_code(self) -> int:
        """Return the exit code of a process that closed its descriptors; stop it if it
        runs on.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_DYING)
        self.stop()
        return self._process.wait()

    def _abort(self) -> None:
        """Stop the process so that it prints its location."""
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self._process.send_signal(signal.SIGABRT)
            self._process.wait(_DYING)
        self.stop()

    def stop(self) -> None:
        """End the process and its child processes."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """End the process and release its resources."""
        self.stop()
        with contextlib.suppress(OSError):
            self._asks.close()
        for number in (self._tells, self._lifeline):
            os.close(number)
        self._output.close()


class _Ended(Exception):
    """The process closed its end of the pipe."""


class _TooLong(Exception):
    """No line came in time."""


class _Nonsense(Exception):
    """The line is not one of a worker; the text quotes it."""


def _signal_name(number: int) -> str:
    """Return name and meaning of a signal: ``SIGSEGV (Segmentation fault)``."""
    with contextlib.suppress(ValueError):
        return f"{signal.Signals(number).name} ({signal.strsignal(number)})"
    return f"signal {number}"


def _last_lines(printed: str) -> str:
    """Return the last lines of the output in one line.

    Of a stack that faulthandler wrote, the backend's call is kept.
    """
    said, _, stack = printed.partition("Fatal Python error: ")
    lines = [line.strip() for line in said.splitlines() if line.strip()][-_SHOWN_LINES:]
    calls = [
        line.strip() for line in stack.splitlines() if line.lstrip().startswith("File ")
    ]
    own = [
        call
        for call in calls
        if "site-packages" in call or _STANDARD_LIBRARY not in call
    ]
    lines += [*own, *calls][:1]
    return " | ".join(lines)[-600:]


def _directory() -> str | None:
    """Return the working directory for paths in compile specs; None if it is gone."""
    with contextlib.suppress(OSError):
        return os.getcwd()
    return None


def data_size(process: int | str = "self") -> int:
    """Return the bytes of a process that memory limits count (VmData); 0 if it has
    ended.
    """
    with contextlib.suppress(OSError), open(f"/proc/{process}/status") as status:
        return next(
            (
                int(line.split()[1]) << 10
                for line in status
                if line.startswith("VmData:")
            ),
            0,
        )
    return 0


def private_folder() -> Path:
    """Return a new folder that only this user can read."""
    return Path(tempfile.mkdtemp(prefix="delegraph-workers-"))


def run_isolated(job: bytes, header: Mapping[str, Any]) -> bytes:
    """Do a job in a new process, at the request of an executor of a remote machine."""
    folder = private_folder()
    try:
        worker = WorkerProcess(folder)
        try:
            answer, printed = worker.run(
                job, Limits(header["time_limit"], header["memory_limit"])
            )
        finally:
            worker.close()
        return pack({"wrapped": True, "output": printed}, [answer])
    except DelegraphError as e:
        return pack({"error": describe(e)})
    finally:
        shutil.rmtree(folder, ignore_errors=True)
