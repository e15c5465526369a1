"""Import torch once and fork for each cell, so that cells start quickly.

This is the code of a worker process (``forking.ForkingProcess`` starts it), and of the
cells that it forks. Compilers start threads when they are imported, which a fork would
lose, so none is imported before. The worker waits for the cell, ends it and all its
processes after its time, and reports how it ended. If the process that sends requests
is gone, the worker ends the cell and itself. It writes no files, so a full disk affects
only cells that write.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import functools
import gc
import json
import os
import resource
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

# options of ``prctl`` in Linux
_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36
_KEPT = 65536
"""Bytes of a cell's last output that are kept."""
_LONGEST_ANSWER = 1 << 30
_DYING = 2.0
"""Seconds in which a stopped cell may print its stack."""


def main() -> None:
    """Do one cell after another; requests and answers are lines of JSON on stdin and
    stdout.
    """
    requests = os.dup(0)
    answers = os.dup(1)
    # imported modules may read and print: they get no part of the requests and answers
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    # processes that a cell leaves behind become children of this process
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    import torch

    from . import measure

    measure.prepare(torch)
    # memory that the collector does not touch stays shared with the forks
    gc.collect()
    gc.freeze()
    _write_line(answers, {"ready": True})
    lines = _Lines(requests)
    while (request := lines.next()) is not None:
        _write_line(answers, _supervised(request, requests, answers))


class _Lines:
    """Lines of a pipe, read without Python's buffer, so that ``select`` sees unread
    data.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._rest = b""

    def next(self) -> dict[str, Any] | None:
        """Return the next line as JSON; None at the end."""
        while b"\n" not in self._rest:
            data = os.read(self._number, 1 << 16)
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        request: dict[str, Any] = json.loads(line)
        return request


def _write_line(answers: int, content: Mapping[str, Any]) -> None:
    data = memoryview(json.dumps(content).encode() + b"\n")
    while data:
        data = data[os.write(answers, data) :]


def _supervised(
    request: Mapping[str, Any], requests: int, answers: int
) -> dict[str, Any]:
    """Do a cell in a fork. Return its answer, if any, its end, and its output."""
    output, output_writer = os.pipe()
    answer, answer_writer = os.pipe()
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        unused = (requests, answers, output, answer)
        _run_cell_in_fork(request, output_writer, answer_writer, unused)
    os.close(output_writer)
    os.close(answer_writer)
    _write_line(answers, {"pid": child})
    pipes = _Pipes(output, answer, requests)
    try:
        stopped = pipes.read_until_end(child, start + request["time_limit"])
    finally:
        status, usage = _end(child)
    pipes.read_rest()
    if pipes.requests_ended:
        os._exit(0)
    return {
        **_parse(pipes.answer),
        "exit": os.waitstatus_to_exitcode(status),
        "stopped": stopped,
        "printed": pipes.output.decode("utf-8", "replace"),
        "seconds": time.monotonic() - start,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_bytes": usage.ru_maxrss * 1024,
    }


def _parse(lines: bytes) -> dict[str, Any]:
    """Return the answer, or None, and the last stage that the cell began.

    ``lines``: everything that the cell wrote to its answer pipe.
    """
    content: dict[str, Any] = {"stage": None, "answer": None}
    for line in lines.splitlines(keepends=True):
        if line.endswith(b"\n"):  # a killed process may leave half a line
            with contextlib.suppress(ValueError, TypeError):
                content |= json.loads(line)
    return {"stage": content["stage"], "answer": content["answer"]}


class _Pipes:
    """The pipes from a cell: its output, of which the end is kept, and its answer.

    ``requests`` is the pipe to this process. Its end means that the asking process is
    gone: then ``requests_ended`` is true.
    """

    def __init__(self, output: int, answer: int, requests: int) -> None:
        self._output = output
        self._answer = answer
        self._requests = requests
        self.output = b""
        self.answer = b""
        self.requests_ended = False

    def read_until_end(self, child: int, until: float) -> bool:
        """Read until the cell ends; return whether its time was over first."""
        with (
            selectors.DefaultSelector() as selector,
            _closing(os.pidfd_open(child)) as ended,
        ):
            for number in (self._output, self._answer, self._requests, ended):
                selector.register(number, selectors.EVENT_READ)
            while True:
                seconds = max(0.0, min(until - time.monotonic(), 3600.0))
                ready = {key.fd for key, _ in selector.select(seconds)}
                for number in ready & {self._output, self._answer}:
                    if not self._read(number):
                        selector.unregister(number)
                # no second request comes before the answer: this is the pipe's end
                if self._requests in ready:
                    self.requests_ended = True
                    return False
                if ended in ready:
                    return False
                if time.monotonic() >= until:
                    self._abort(child, ended)
                    return True

    def _abort(self, child: int, ended: int) -> None:
        """Stop the cell by SIGABRT, so that faulthandler prints its stack."""
        os.kill(child, signal.SIGABRT)
        with selectors.DefaultSelector() as selector:
            selector.register(ended, selectors.EVENT_READ)
            selector.select(_DYING)

    def _read(self, number: int) -> bool:
        """Read from a pipe; return whether it has not ended."""
        data = os.read(number, 1 << 16)
        if number == self._output:
            self.output = (self.output + data)[-_KEPT:]
        elif len(self.answer) < _LONGEST_ANSWER:
            self.answer += data
        return bool(data)

    def read_rest(self) -> None:
        """Read the rest after the end of the cell, and close the pipes."""
        for number in (self._output, self._answer):
            os.set_blocking(number, False)
            # a process that cannot be killed may still have the pipe open
            with contextlib.suppress(BlockingIOError):
                while self._read(number):
                    pass
            os.close(number)


@contextlib.contextmanager
def _closing(number: int) -> Any:
    try:
        yield number
    finally:
        os.close(number)


def _end(child: int) -> tuple[int, Any]:
    """End the cell and all its processes, in any group. Return its status and usage."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):  # it had no group of its own yet
        os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    # this process is now the parent of all processes that the cell started
    while orphans := _children():
        for orphan in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(orphan, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(orphan, 0)
    return status, usage


def _children() -> list[int]:
    """Return the ids of the child processes of this process."""
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:
        # this kernel does not list them; at least the cell's group was ended
        return []
    return [int(pid) for pid in text.split()]


def _run_cell_in_fork(
    request: Mapping[str, Any],
    output_writer: int,
    answer_writer: int,
    unused: tuple[int, ...],
) -> NoReturn:
    """Do the cell in the fork, write the answer and exit, without exit handlers.

    ``unused``: file descriptors of the parent process, which are closed here.
    """
    own = os.getpid()
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for number in unused:
            os.close(number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output_writer, 1)
        os.dup2(output_writer, 2)
        os.close(output_writer)
        fcntl.fcntl(answer_writer, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        # buffered by line: a killed process does not write the rest of a buffer
        sys.stdin = os.fdopen(0, "r", 1)
        sys.stdout = os.fdopen(1, "w", 1)
        sys.stderr = os.fdopen(2, "w", 1)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        faulthandler.enable()
        _limit(request["memory_limit"])
        from . import measure

        def send(name: str, value: Any) -> None:
            if os.getpid() == own:  # not in a process that the model forked
                _write_line(answer_writer, {name: value})

        begin = functools.partial(send, "stage")
        send("answer", measure.cell(request["job"], request["store"], begin))
    except BaseException:
        with contextlib.suppress(BaseException):  # such as a MemoryError again
            traceback.print_exc()
        os._exit(1)
    finally:
        os._exit(0)


def _limit(memory: int | None) -> None:
    """Let allocations fail if this process grows by more than ``memory`` bytes.

    None: 80 % of the machine's memory.
    """
    # let the system kill this process first if memory runs out
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    if memory is None:
        memory = int(0.8 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [
        n for n in (data_bytes() + memory, soft, hard) if n != resource.RLIM_INFINITY
    ]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    # a failed cell writes no core file
    _, hard_core = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard_core))


def data_bytes() -> int:
    """Return the memory that RLIMIT_DATA counts."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    return pages * os.sysconf("SC_PAGE_SIZE")
