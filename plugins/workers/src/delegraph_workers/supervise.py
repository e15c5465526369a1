"""Start, watch and stop processes that compile.

A *worker* is a process that runs ``worker.main``. It reads requests from one pipe and
writes its progress to another: a line "ready" at its start, then "begun" and "done" for
each job. A third pipe, the lifeline, is never written: the worker ends when its
supervisor closes it or dies.
"""

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

from .config import variables_for_other
from .failures import write_error
from .message import PROTOCOL, pack

START_LIMIT = 300.0
"""Seconds until a compilation begins.

Before, Python starts, torch and the backend are imported, and the partition is read.
"""
_SHOWN_LINES = 5
"""The most printed lines that an error quotes."""
_SHOWN_BYTES = 65536
"""The most bytes of the output that are searched for these lines."""
_LONGEST_LINE = 65536
"""The most bytes of a line of progress."""
_CHECK_INTERVAL = 1.0
"""Seconds after which the supervisor checks that a silent worker lives.

Its child processes may hold its end of the pipe, which then stays open.
"""
_GRACE_TIME = 5.0
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
    Without it, the worker finds the same modules as this process. ``folder`` contains
    jobs, answers and output. ``output_start`` is, in all methods, the byte at which the
    output of the current job begins.
    """

    def __init__(self, folder: Path, python: str | None = None) -> None:
        if os.name != "posix":
            raise DelegraphError(
                "workers/not-started",
                "workers cannot be started on this system",
                hint="use Linux, macOS or the Windows Subsystem for Linux, or compile"
                " in this process: without isolation",
            )
        self._folder = folder
        self.python = python
        self._output = tempfile.TemporaryFile(dir=folder)
        requests, requests_end = os.pipe()
        answers_end, answers = os.pipe()
        lifeline, self._lifeline = os.pipe()
        worker_ends = (requests, answers, lifeline)
        command = _command(python, worker_ends)
        environment = variables_for_other(folder) if python else dict(os.environ)
        environment.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=worker_ends,
                env=environment,
                cwd=folder,  # do not import modules of the working directory
                start_new_session=True,  # to end its child processes with it
            )
        except OSError as e:
            for number in (requests_end, answers_end, self._lifeline):
                os.close(number)
            self._output.close()
            raise DelegraphError(
                "workers/not-started", f"no worker could be started: {command[0]}: {e}"
            ) from e
        finally:
            for number in worker_ends:
                os.close(number)
        self._requests = os.fdopen(requests_end, "w", buffering=1)
        self._answers = answers_end
        self._lines = b""
        self._ready = False
        self._size_when_ready = 0
        self.pid = self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def prepare(self, backends: Sequence[str]) -> None:
        """Let the worker import backends while it is idle."""
        # if the worker has died, another one gets the next job
        with contextlib.suppress(BrokenPipeError):
            self._requests.write(json.dumps({"prepare": list(backends)}) + "\n")

    def run(self, job: bytes, limits: Limits) -> tuple[bytes, str]:
        """Execute a job; return the answer and the printed text.

        Raises Unsupported, with the end of the process, if it does not survive the job
        or exceeds a limit.
        """
        name = f"{self.pid}-{time.monotonic_ns()}"
        job_path = self._folder / f"{name}.job"
        answer_path = self._folder / f"{name}.answer"
        partial_path = self._folder / f"{name}.answer.partial"
        request = {
            "job": str(job_path),
            "answer": str(answer_path),
            "memory_limit": limits.memory,
            "directory": _working_directory(),
        }
        try:
            if not self._ready:
                self._expect_ready()
            output_start = os.fstat(self._output.fileno()).st_size
            job_path.write_bytes(job)
            with contextlib.suppress(BrokenPipeError):
                self._requests.write(json.dumps(request) + "\n")
            if self._wait_for("begun", START_LIMIT, output_start):
                self._wait_for("done", limits.seconds, output_start)
            if not answer_path.exists():
                raise self._refusal(
                    "reported that it was done, but left no answer", output_start
                )
            return answer_path.read_bytes(), self._printed(output_start)
        except BaseException:
            # such as KeyboardInterrupt: its later answer must not answer the next job
            self.stop()
            raise
        finally:
            for path in (job_path, answer_path, partial_path):
                path.unlink(missing_ok=True)

    def _expect_ready(self) -> None:
        """Wait until the worker has started. Raises DelegraphError if it cannot."""
        try:
            line = self._next_line(time.monotonic() + START_LIMIT)
        except _Ended:
            why = _last_lines(self._printed(0)) or f"exit code {self._exit_code()}"
            hint = None
            if self.python:
                hint = "install delegraph and delegraph-workers in its environment"
            raise DelegraphError(
                "workers/not-started",
                f"a worker ended while it started: {why}",
                hint=hint,
            ) from None
        except _TooLong:
            printed = _last_lines(self._printed(0)) or "nothing"
            raise DelegraphError(
                "workers/not-started",
                f"a worker had not started after {START_LIMIT:g} s; it printed:"
                f" {printed}",
            ) from None
        except _WrongLine as e:
            printed = _last_lines(self._printed(0)) or "nothing"
            raise DelegraphError(
                "workers/not-started",
                f"a worker sent an invalid message while it started: {e}; it"
                f" printed: {printed}",
            ) from None
        if line.get("ready") != PROTOCOL:
            raise DelegraphError(
                "workers/not-started",
                f"a worker has protocol {line.get('ready')}, but this process has"
                f" protocol {PROTOCOL}",
                hint="install the same delegraph-workers in both environments",
            )
        self._ready = True
        self._size_when_ready = data_size(self.pid)

    @property
    def grown(self) -> int:
        """Return the growth of the process's memory since it was ready, in bytes."""
        return data_size(self.pid) - self._size_when_ready

    def _wait_for(self, step: str, limit: float | None, output_start: int) -> bool:
        """Wait for the line ``step`` ("begun" or "done").

        Returns False if "done" comes instead: the job failed before it began. Raises
        Unsupported if the process ends, takes too long, or sends another line.
        """
        start = time.monotonic()
        try:
            line = self._next_line(None if limit is None else start + limit)
            if step not in line and "done" not in line:
                raise _WrongLine(f"{line!r:.80}")
        except _TooLong:
            assert limit is not None
            self._abort()
            raise self._refusal(
                f"was stopped after {limit:g} s",
                output_start,
                "allow more with time_limit",
            ) from None
        except _WrongLine as e:
            raise self._refusal(
                f"was stopped, because it sent {e} instead of its progress",
                output_start,
            ) from None
        except _Ended:
            seconds = time.monotonic() - start
            code = self._exit_code()
            end = f"ended with exit code {code}"
            if code < 0:
                end = f"was killed by {_signal_name(-code)}"
            raise self._refusal(f"{end} after {seconds:.1f} s", output_start) from None
        return step in line

    def _refusal(
        self, end: str, output_start: int, hint: str | None = None
    ) -> Unsupported:
        """Return the error for a process that ``end``, with the end of its output."""
        text = f"its process {end}"
        printed = _last_lines(self._printed(output_start))
        if printed:
            text += f"; it printed: {printed}"
        return Unsupported("unsupported", text, hint=hint)

    def _next_line(self, until: float | None) -> dict[str, Any]:
        """Return the fields of the worker's next line of progress.

        Raises _Ended at its end, _TooLong after the time, _WrongLine for an invalid
        line.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._lines:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise _TooLong
                if len(self._lines) > _LONGEST_LINE:
                    raise _WrongLine(f"{self._lines[:40]!r}...")
                # Read this before the pipe: a worker that dies in between may have
                # written lines.
                is_alive = self.alive
                patience = (
                    _CHECK_INTERVAL if left is None else min(_CHECK_INTERVAL, left)
                )
                if not selector.select(patience if is_alive else 0):
                    if is_alive:
                        continue
                    raise _Ended
                data = os.read(self._answers, 4096)
                if not data:
                    raise _Ended
                self._lines += data
        line, _, self._lines = self._lines.partition(b"\n")
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise _WrongLine(f"{line!r:.80}")
        return fields

    def _printed(self, output_start: int) -> str:
        """Return the end of the process's output from byte ``output_start`` on."""
        end = os.fstat(self._output.fileno()).st_size
        output_start = max(output_start, end - _SHOWN_BYTES)
        data = os.pread(self._output.fileno(), end - output_start, output_start)
        return data.decode("utf-8", "replace")

    def _exit_code(self) -> int:
        """Return the exit code of a process that closed its descriptors.

        A process that continues is stopped.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_GRACE_TIME)
        self.stop()
        return self._process.wait()

    def _abort(self) -> None:
        """Stop the process with SIGABRT, so that faulthandler prints its stack."""
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self._process.send_signal(signal.SIGABRT)
            self._process.wait(_GRACE_TIME)
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
            self._requests.close()
        for number in (self._answers, self._lifeline):
            os.close(number)
        self._output.close()


def _command(python: str | None, descriptors: tuple[int, int, int]) -> list[str]:
    """Return the command that starts a worker with three descriptors.

    ``python`` is the interpreter of another environment; None means this one.
    """
    flags = ["-u", "-X", "faulthandler"]
    if python:
        arguments = map(str, descriptors)
        return [python, *flags, "-m", "delegraph_workers.worker", *arguments]
    path = [p for p in sys.path if isinstance(p, str)]
    program = (
        f"import sys; sys.path[:] = {path!r}; from delegraph_workers.worker"
        f" import main; main(*{descriptors})"
    )
    return [sys.executable, *flags, "-c", program]


class _Ended(Exception):
    """The process closed its end of the pipe."""


class _TooLong(Exception):
    """No line came in time."""


class _WrongLine(Exception):
    """The line is no line of a worker; the text quotes it."""


def _signal_name(number: int) -> str:
    """Return name and meaning of a signal: ``SIGSEGV (Segmentation fault)``."""
    with contextlib.suppress(ValueError):
        return f"{signal.Signals(number).name} ({signal.strsignal(number)})"
    return f"signal {number}"


def _last_lines(printed: str) -> str:
    """Return the last lines of the output in one line.

    A stack of faulthandler is shortened to its first call outside of Python's library,
    which is the call of the backend.
    """
    text, _, stack = printed.partition("Fatal Python error: ")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = lines[-_SHOWN_LINES:]
    calls = [
        line.strip() for line in stack.splitlines() if line.lstrip().startswith("File ")
    ]
    outside_python = [
        call
        for call in calls
        if "site-packages" in call or _STANDARD_LIBRARY not in call
    ]
    lines += [*outside_python, *calls][:1]
    return " | ".join(lines)[-600:]


def _working_directory() -> str | None:
    """Return the working directory for paths in compile specs; None if it was removed."""
    with contextlib.suppress(OSError):
        return os.getcwd()
    return None


def data_size(process: int | str = "self") -> int:
    """Return the bytes of a process that memory limits count (VmData); 0 if it has
    ended.
    """
    with contextlib.suppress(OSError), open(f"/proc/{process}/status") as status:
        for line in status:
            if line.startswith("VmData:"):
                kilobytes = int(line.split()[1])
                return kilobytes << 10
    return 0


def private_folder() -> Path:
    """Return a new folder that only this user can read."""
    return Path(tempfile.mkdtemp(prefix="delegraph-workers-"))


def run_isolated(job: bytes, header: Mapping[str, Any]) -> bytes:
    """Execute a job in a new process, for an executor on a remote machine."""
    folder = private_folder()
    limits = Limits(header["time_limit"], header["memory_limit"])
    try:
        worker = WorkerProcess(folder)
        try:
            answer, printed = worker.run(job, limits)
        finally:
            worker.close()
        return pack({"wrapped": True, "output": printed}, [answer])
    except DelegraphError as e:
        return pack({"error": write_error(e)})
    finally:
        shutil.rmtree(folder, ignore_errors=True)
