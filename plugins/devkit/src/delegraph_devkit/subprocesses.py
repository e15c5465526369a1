"""Fresh processes for checks: a server per hash seed imports torch once, and forks for every job.

A forked job cannot disturb the tests, has a limit of time and memory, and reports how far it came before it crashed.
Jobs and answers are pickled, between processes that we start ourselves.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import IO, Any

from delegraph.errors import InternalError

MEMORY = 3 << 30
"""Bytes that a job may use beyond what its process has when it starts."""
_HEADER = struct.Struct("<Q")
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Answer:
    """How a job ended: its result, or the error's text; ``signal`` and ``timed_out`` if it was ended by force.

    ``items`` is what a generator gave until then, ``progress`` the last thing that a job reported, ``output`` the end
    of what it printed.
    """

    result: Any = None
    items: tuple[Any, ...] = ()
    error: str | None = None
    signal: str | None = None
    timed_out: bool = False
    progress: str = ""
    output: str = ""

    @property
    def finished(self) -> bool:
        """Whether there is a result."""
        return self.error is None and self.signal is None and not self.timed_out

    @property
    def failure(self) -> str:
        """What happened instead of a result."""
        if self.timed_out or self.signal == "SIGPROF":  # a limit of CPU time that the job set itself
            return "did not come to an end in time"
        return f"was ended by {self.signal}" if self.signal else f"raised {self.error}"


class Worker:
    """The parent's side of one server."""

    def __init__(self, hash_seed: int) -> None:
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
        environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
        self._log = tempfile.TemporaryFile()
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", code]
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._log, env=environment)

    def run(self, function: str, *args: Any, seconds: float, prepare: str | None = None) -> Answer:
        """Run ``"module:name"`` as ``name(*args, progress)`` in a fork, which may be silent for ``seconds`` at most.

        ``prepare`` names a function that the server runs before, once, for this fork and all others. Raises
        InternalError if the server is gone.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            _send(self._process.stdin, (function, args, seconds, prepare))
            answer: Answer = _receive(self._process.stdout)
        except (OSError, EOFError) as e:
            self._log.seek(0)
            said = self._log.read()[-2000:].decode(errors="replace").strip()
            raise InternalError("internal", f"the process for checks could not be started: {said}") from e
        return answer

    def close(self) -> None:
        """End the server."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.wait()
        self._log.close()


@cache
def worker(hash_seed: int) -> Worker:
    """The server with that hash seed, started when it is first asked for and ended with this process."""
    made = Worker(hash_seed)
    atexit.register(made.close)
    return made


def _send(stream: IO[bytes], item: Any) -> None:
    data = pickle.dumps(item)
    stream.write(_HEADER.pack(len(data)) + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    (size,) = _HEADER.unpack(_exactly(stream, _HEADER.size))
    return pickle.loads(_exactly(stream, size))


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


# --- the server's side ------------------------------------------------------------------------------------------------


def serve() -> None:
    """Import torch and export the samples, then fork for every job until the parent closes the pipe."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what jobs print must not get between the answers
    import torch

    from .prepare import prepare

    torch.set_num_threads(1)
    prepare()
    prepared: set[str | None] = {None}
    while True:
        try:
            function, args, seconds, preparation = _receive(sys.stdin.buffer)
        except EOFError:
            return
        if preparation not in prepared:
            _named(preparation)()
            prepared.add(preparation)
        _send(answers, _forked(function, args, seconds))


def _forked(function: str, args: tuple[Any, ...], seconds: float) -> Answer:
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as output:
        process = os.fork()
        if process == 0:
            os.close(reading)
            _job(function, args, writing, output.fileno())
        os.close(writing)
        with os.fdopen(reading, "rb") as stream:
            frames, items, timed_out = _frames(stream, seconds)
        if timed_out:
            os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        output.seek(max(0, output.seek(0, os.SEEK_END) - 4000))
        return _answer(frames, items, timed_out, status, output.read().decode(errors="replace").strip())


def _frames(stream: Any, seconds: float) -> tuple[dict[str, Any], list[Any], bool]:
    """The last frame of each kind, all items, and whether it was silent for ``seconds``."""
    found: dict[str, Any] = {}
    items: list[Any] = []
    data = b""
    while True:
        ready, _, _ = select.select([stream], [], [], seconds)
        if not ready:
            return found, items, True
        more = os.read(stream.fileno(), 1 << 20)
        if not more:
            return found, items, False
        data += more
        while len(data) >= _HEADER.size and len(data) >= _HEADER.size + (size := _HEADER.unpack_from(data)[0]):
            kind, content = pickle.loads(data[_HEADER.size : _HEADER.size + size])
            found[kind], data = content, data[_HEADER.size + size :]
            if kind == "item":
                items.append(content)


def _answer(frames: dict[str, Any], items: list[Any], timed_out: bool, status: int, output: str) -> Answer:
    killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) and not timed_out else 0
    error = frames.get("error")
    if "result" not in frames and error is None and not killed and not timed_out:
        error = f"an exit of the whole process (code {os.waitstatus_to_exitcode(status)})"
    name = signal.Signals(killed).name if killed else None
    return Answer(frames.get("result"), tuple(items), error, name, timed_out, frames.get("progress", ""), output)


def _job(function: str, args: tuple[Any, ...], writing: int, output: int) -> None:
    """In the fork: never returns."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    with os.fdopen(writing, "wb") as stream:
        _limit_memory(MEMORY)
        try:
            result = _named(function)(*args, lambda text: _send(stream, ("progress", text)))
            for item in result if isinstance(result, Iterator) else ():
                _send(stream, ("item", item))
            _send(stream, ("result", None if isinstance(result, Iterator) else result))
        except BaseException as e:  # the parent is told, whatever it is
            traceback.print_exc()
            _send(stream, ("error", f"{type(e).__name__}: {e}"))
    os._exit(0)


def _named(function: str) -> Any:
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


def _limit_memory(beyond: int) -> None:
    import resource

    with open("/proc/self/statm") if os.path.exists("/proc/self/statm") else contextlib.nullcontext() as file:
        used = int(file.read().split()[0]) * resource.getpagesize() if file is not None else 1 << 34
    resource.setrlimit(resource.RLIMIT_AS, (used + beyond, used + beyond))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
