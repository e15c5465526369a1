"""Import torch once and fork for each cell, which so starts quickly.

Compilers start threads when they are imported, so none is imported before the fork.
This process waits for the cell, ends it and all its processes after its time, and
reports how it ended. If the asking process is gone, it ends the cell and itself. It
uses no files, so a full disk affects only cells that write.
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

_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36
_KEPT = 65536
"""Bytes of a cell's last output that are kept."""
_LONGEST_ANSWER = 1 << 30
_DYING = 2.0
"""Seconds in which a stopped cell may print its location."""


def main() -> None:
    """Do one cell after another; requests and answers are lines of JSON on stdin and
    stdout.
    """
    requests = os.dup(0)
    answers = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):  # imported modules may read and print
        os.dup2(nothing, number)
    # processes that a cell leaves behind become children of this process
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    import torch

    from . import measure

    measure.prepare(torch)
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
    output, prints = os.pipe()
    answer, gives = os.pipe()
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        _be_the_cell(request, prints, gives, (requests, answers, output, answer))
    os.close(prints)
    os.close(gives)
    _write_line(answers, {"pid": child})
    pipes = _Pipes(output, answer, requests)
    try:
        stopped = pipes.read_until_end(child, start + request["time_limit"])
    finally:
        status, usage = _end(child)
    pipes.read_rest()
    if pipes.asker_is_gone:
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
    """Return the answer, or None, and the last stage that the cell began."""
    content: dict[str, Any] = {"stage": None, "answer": None}
    for line in lines.splitlines(keepends=True):
        if line.endswith(b"\n"):  # a killed process may leave half a line
            with contextlib.suppress(ValueError, TypeError):
                content |= json.loads(line)
    return {"stage": content["stage"], "answer": content["answer"]}


class _Pipes:
    """The pipes from a cell: its output, of which the end is kept, and its answer."""

    def __init__(self, output: int, answer: int, requests: int) -> None:
        self._output = output
        self._answer = answer
        self._requests = requests
        self.output = b""
        self.answer = b""
        self.asker_is_gone = False

    def read_until_end(self, child: int, until: float) -> bool:
        """Read until the cell ends; return whether its time was over first."""
        with (
            selectors.DefaultSelector() as selector,
            _closing(os.pidfd_open(child)) as ended,
        ):
            for number in (self._output, self._answer, self._requests, ended):
                selector.register(number, selectors.EVENT_READ)
            while True:
                ready = {
                    key.fd
                    for key, _ in selector.select(
                        max(0.0, min(until - time.monotonic(), 3600.0))
                    )
                }
                for number in ready & {self._output, self._answer}:
                    if not self._read(number):
                        selector.unregister(number)
                # a second request cannot come meanwhile: this is the end of the pipe
                if self._requests in ready:
                    self.asker_is_gone = True
                    return False
                if ended in ready:
                    return False
                if time.monotonic() >= until:
                    self._let_it_say_where(child, ended)
                    return True

    def _let_it_say_where(self, child: int, ended: int) -> None:
        """Stop the cell by SIGABRT, for which faulthandler prints its location."""
        os.kill(child, signal.SIGABRT)
        with selectors.DefaultSelector() as selector:
            selector.register(ended, selectors.EVENT_READ)
            selector.select(_DYING)

    def _read(self, number: int) -> bool:
        data = os.read(number, 1 << 16)
        if number == self._output:
            self.output = (self.output + data)[-_KEPT:]
        elif len(self.answer) < _LONGEST_ANSWER:
            self.answer += data
        return bool(data)

    def read_rest(self) -> None:
        """Read the rest after the end, and close."""
        for number in (self._output, self._answer):
            os.set_blocking(number, False)
            # a process that cannot be killed may have it open
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
    try:
        return [
            int(text)
            for text in (
                Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            )
        ]
    except OSError:
        # a kernel that does not list them: the cell's group is ended all the same
        return []


def _be_the_cell(
    request: Mapping[str, Any], prints: int, gives: int, others: tuple[int, ...]
) -> NoReturn:
    """Do the cell in the fork, write the answer and end, without running exit handlers."""
    own = os.getpid()
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for number in others:
            os.close(number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(prints, 1)
        os.dup2(prints, 2)
        os.close(prints)
        fcntl.fcntl(gives, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        # by line, since a process that is killed writes nothing out
        sys.stdin = os.fdopen(0, "r", 1)
        sys.stdout = os.fdopen(1, "w", 1)
        sys.stderr = os.fdopen(2, "w", 1)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        faulthandler.enable()
        _limit(request["memory_limit"])
        from . import measure

        def send(name: str, value: Any) -> None:
            if os.getpid() == own:  # and not a copy that the model forked
                _write_line(gives, {name: value})

        begin = functools.partial(send, "stage")
        send("answer", measure.cell(request["job"], request["store"], begin))
    except BaseException:
        with contextlib.suppress(BaseException):  # such as a MemoryError again
            traceback.print_exc()
        os._exit(1)
    finally:
        os._exit(0)


def _limit(memory: int | None) -> None:
    """Let allocations fail beyond ``memory`` bytes of growth; None: see ``Settings``."""
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
    resource.setrlimit(
        resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1])
    )


def data_bytes() -> int:
    """Return the memory that RLIMIT_DATA counts."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    return pages * os.sysconf("SC_PAGE_SIZE")
