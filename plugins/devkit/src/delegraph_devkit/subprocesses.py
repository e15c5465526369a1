"""Run jobs of checks in fresh processes.

A server per hash seed imports torch once, and forks for every job. A job cannot disturb
the tests, has limits of time and memory, and reports its progress before it may crash.
Jobs and answers are pickled: delegraph starts both processes.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import operator
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from delegraph.errors import DelegraphError, InternalError

MEMORY = 3 << 30
"""Bytes that a job may use in addition to those of its process at the start."""
_HEADER = struct.Struct("<Q")
Report = Callable[[str], None]
"""A function to which a job reports its next step."""


@dataclass(frozen=True)
class Answer:
    """The end of a job: its ``result``, its exception, or the end of its process.

    ``raised`` and ``died`` describe the last two; they are "" if they do not apply.
    ``items`` are the elements that a generator yielded, ``progress`` is the last
    report, ``output`` the end of the printed text. ``hung``: the job took too long, and
    was ended.
    """

    result: Any = None
    items: tuple[Any, ...] = ()
    raised: str = ""
    died: str = ""
    hung: bool = False
    progress: str = ""
    output: str = ""

    @property
    def failure(self) -> str:
        """Return the failure as the rest of a sentence; "" if there is a result."""
        if self.raised and not self.died:
            return f"raised {self.raised}"
        return self.died


class ForkServer:
    """A process that imports torch once and forks for every job."""

    def __init__(self, hash_seed: int) -> None:
        if not hasattr(os, "fork"):
            raise DelegraphError(
                "devkit/no-fork",
                "the checks need os.fork, which this system does not have",
                hint="run them on Linux, macOS or the Windows Subsystem for Linux",
            )
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve;"
            " serve()"
        )
        environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
        self._log = tempfile.TemporaryFile()
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", code]
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self._log, env=environment
        )

    def run(
        self, function: str, *args: Any, seconds: float, prepare: str | None = None
    ) -> Answer:
        """Run ``"module:name"`` as ``name(*args, report)`` in a fork.

        The fork may be silent for at most ``seconds``. ``prepare`` names a function
        that the server runs once, for this and all later forks. Raises InternalError if
        the server has ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            _send(self._process.stdin, (function, args, seconds, prepare))
            answer: Answer = _receive(self._process.stdout)
        except (OSError, EOFError) as e:
            self._log.seek(0)
            printed = self._log.read()[-2000:].decode(errors="replace").strip()
            raise InternalError(
                "internal", f"the process for checks could not be started: {printed}"
            ) from e
        return answer

    def close(self) -> None:
        """End the server."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.wait()
        self._log.close()


_servers: dict[int, ForkServer] = {}
_starting = threading.Lock()


def fork_server(hash_seed: int) -> ForkServer:
    """Return the server with a hash seed.

    It starts at first use and ends with this process.
    """
    with _starting:
        if hash_seed not in _servers:
            _servers[hash_seed] = ForkServer(hash_seed)
            atexit.register(_servers[hash_seed].close)
        return _servers[hash_seed]


def _send(stream: IO[bytes], item: Any) -> None:
    data = pickle.dumps(item)
    stream.write(_HEADER.pack(len(data)) + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    (size,) = _HEADER.unpack(_read_exactly(stream, _HEADER.size))
    return pickle.loads(_read_exactly(stream, size))


def _read_exactly(stream: IO[bytes], size: int) -> bytes:
    """Read ``size`` bytes. Raises EOFError if the stream ends before."""
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


# --- the server's side ----------------------------------------------------------------


def serve() -> None:
    """Import torch, export the samples, and fork for every job until the pipe closes."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of jobs must not mix with answers
    import torch

    from .warm_up import warm_up

    torch.set_num_threads(1)
    warm_up()
    # otherwise each garbage collection in a fork visits all objects of torch, and copies
    # their memory
    gc.freeze()
    prepared: set[str | None] = {None}
    while True:
        try:
            function, args, seconds, prepare = _receive(sys.stdin.buffer)
        except EOFError:
            return
        if prepare not in prepared:
            find_by_name(prepare)()
            prepared.add(prepare)
            gc.freeze()
        _send(answers, _fork(function, args, seconds))


def _fork(function: str, args: tuple[Any, ...], seconds: float) -> Answer:
    """Run a job in a fork of this process; return its end (``ForkServer.run``)."""
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as output:
        process = os.fork()
        if process == 0:
            os.close(reading)
            _job(function, args, writing, output.fileno())
        os.close(writing)
        with os.fdopen(reading, "rb") as stream:
            messages = _receive_messages(stream, seconds)
        if messages.silent:
            os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        output.seek(max(0, output.seek(0, os.SEEK_END) - 4000))
        printed = output.read().decode(errors="replace").strip()
    ending = signal.Signals(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None
    # the signal of the limit of CPU time is SIGPROF
    hung = messages.silent or ending is signal.SIGPROF
    died = ""
    if hung:
        died = "did not end in time"
    elif ending is not None:
        died = f"was ended by {ending.name}"
    elif not messages.last.keys() & {"result", "error"}:
        died = f"exited with code {os.waitstatus_to_exitcode(status)}"
    return Answer(
        result=messages.last.get("result"),
        items=tuple(messages.items),
        raised=messages.last.get("error", ""),
        died=died,
        hung=hung,
        progress=messages.last.get("progress", ""),
        output=printed,
    )


@dataclass
class _Messages:
    """The messages of a job, such as ("progress", text) or ("item", item).

    ``last``: kind -> content of the last message of this kind. ``items``: the contents
    of all items. ``silent``: the job sent no message for too long.
    """

    last: dict[str, Any] = field(default_factory=dict)
    items: list[Any] = field(default_factory=list)
    silent: bool = False


def _receive_messages(stream: IO[bytes], seconds: float) -> _Messages:
    """Read messages until the stream ends, or is silent for ``seconds``."""
    messages = _Messages()
    data = b""
    while True:
        ready, _, _ = select.select([stream], [], [], seconds)
        if not ready:
            messages.silent = True
            return messages
        more = os.read(stream.fileno(), 1 << 20)
        if not more:
            return messages
        data += more
        while len(data) >= _HEADER.size:
            (size,) = _HEADER.unpack_from(data)
            end = _HEADER.size + size
            if len(data) < end:
                break
            kind, content = pickle.loads(data[_HEADER.size : end])
            data = data[end:]
            messages.last[kind] = content
            if kind == "item":
                messages.items.append(content)


def _job(function: str, args: tuple[Any, ...], writing: int, output: int) -> None:
    """Run a job in the fork; never return."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    with os.fdopen(writing, "wb") as stream:
        _limit_memory(MEMORY)

        def report(text: str) -> None:
            _send(stream, ("progress", text))

        try:
            result = find_by_name(function)(*args, report)
            if isinstance(result, Iterator):
                for item in result:
                    _send(stream, ("item", item))
                result = None
            _send(stream, ("result", result))
        except BaseException as e:  # the parent gets every error
            traceback.print_exc()
            _send(stream, ("error", f"{type(e).__name__}: {e}"))
    os._exit(0)


def find_by_name(name: str) -> Any:
    """Return the object that ``"module:name"`` or ``"module:object.attribute"`` names."""
    module, _, attributes = name.partition(":")
    return operator.attrgetter(attributes)(importlib.import_module(module))


def _limit_memory(beyond: int) -> None:
    """Limit the memory of this process to ``beyond`` bytes more than it uses now."""
    import resource

    if sys.platform == "linux":  # macOS defines RLIMIT_AS, but refuses it
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        limit = pages * resource.getpagesize() + beyond
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
