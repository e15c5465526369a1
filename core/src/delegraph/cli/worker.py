"""Runs a command in a worker process, so that a plugin that crashes or exits is noticed and named.

Native code of a plugin can end its process (``exit(0)``, a crash) or hang, which Python code in the same process cannot
handle. So the process that the user started forks a worker that runs the command. It imports no plugins itself, waits
for the worker, and reads from a shared page of memory which plugin was at work and whether the command had finished. If
the import of a light module ends the worker or takes longer than LIMIT, the command is run again, in a new worker,
without that plugin.
"""

from __future__ import annotations

import gc
import mmap
import os
import signal
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple, NoReturn

Key = tuple[str, str]
"""(distribution, entry point) of a plugin"""
LIMIT = 30.0
"""Seconds that the import of one light module may take.

A module that takes 0.5 seconds gets a warning. One that imports torch, against the rules, takes 10 on a busy machine.
"""
_POLL = 0.25
_STOPS = {s for s in signal.Signals if s.name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")}  # Windows lacks some
_RELAYED = {*_STOPS, *(s for s in signal.Signals if s.name in ("SIGUSR1", "SIGUSR2"))}


class End(NamedTuple):
    """How a worker ended.

    ``done``: the command had finished. ``code``: exit code of the worker; if that is 0, or if the worker was killed,
    the exit code of the finished command, else 0. ``signal``: the signal that killed the worker; 0 if none did.
    ``shown``: the result may already be on stdout. ``during``: the plugin's work that was going on; "" if there was
    none.
    """

    done: bool
    code: int
    signal: int
    shown: bool
    during: str

    @property
    def how(self) -> str:
        """The end as text that continues the name of a plugin: ``killed the process (Segmentation fault)``."""
        if self.signal:
            return f"killed the process ({signal.strsignal(self.signal)})"
        return f"ended the process with exit code {self.code}"


_RUNNING, _PRINTING, _FINISHED = 0, 1, 2
"""How far a command is. It prints its result last."""


class _Head(NamedTuple):
    """The numbers at the beginning of a ``Page``.

    ``phase``: how far the command is. ``code``: the exit code of the finished command. ``importing``: number of the
    import of a light module that is going on, counted from 1; 0 if there is none.
    """

    phase: int
    code: int
    importing: int


class Page:
    """Shared memory in which the worker records its state for the waiting process.

    The state is how far the command is, which plugin is at work, and whose light module is being imported. Unlike a
    pipe, memory need not be read all the time, and it keeps what a dead worker wrote.
    """

    _HEAD = struct.Struct("<BBI")
    """A ``_Head`` in bytes."""
    _IMPORT, _WORK, _SIZE = 16, 2048, 16384
    """Where the text of the imported plugin begins, where that of the work begins, and where the page ends (bytes)."""

    def __init__(self) -> None:
        """Map memory that processes forked from this one share. Nothing is written to it before ``open``."""
        self._memory = mmap.mmap(-1, self._SIZE)
        self._worker = 0  # process id of the worker; stays 0 in the process that waits
        self._imports = 0  # how often ``begin_import`` was called

    # --- in the worker

    def open(self) -> None:
        """Make this process the worker: only it can write from now on, and no process that it forks."""
        self._worker = os.getpid()

    def begin_import(self, plugin: Key | None) -> None:
        """Record that the import of the light module of ``plugin`` begins, or (None) that an import has ended."""
        self._imports += 1  # so that the waiting process can tell one import from the next
        if plugin is not None:
            self._write_text(self._IMPORT, self._WORK, "\n".join(plugin))
        self._write_head(importing=0 if plugin is None else self._imports)

    def begin_work(self, line: str) -> None:
        """Record the work that is going on, in a line; "" if there is none."""
        self._write_text(self._WORK, self._SIZE, line)

    def show(self) -> None:
        """Record that the result is about to be printed."""
        self._write_head(phase=_PRINTING)

    def finish(self, code: int) -> None:
        """Record that the command has finished with the exit code ``code``."""
        self._write_head(code=code)
        self._write_head(phase=_FINISHED)

    def _write_head(self, **changes: int) -> None:
        """Change fields of the head, if this process is the worker."""
        if os.getpid() == self._worker:
            self._HEAD.pack_into(self._memory, 0, *self._read_head()._replace(**changes))

    def _write_text(self, start: int, end: int, text: str) -> None:
        """Write a text to the bytes from ``start`` to ``end``, cut to fit, if this process is the worker."""
        if os.getpid() == self._worker:
            data = text.encode("utf-8", "replace")[: end - start - 1] + b"\0"
            self._memory[start : start + len(data)] = data

    # --- in the process that waits

    @property
    def importing(self) -> int:
        """The number of the import that is going on: the worker counts imports of light modules. 0 if none is."""
        return self._read_head().importing

    @property
    def plugin(self) -> Key:
        """The plugin whose light module is being imported, or was imported last."""
        distribution, _, name = self._read_text(self._IMPORT, self._WORK).partition("\n")
        return distribution, name

    def end(self, status: int) -> End:
        """How the worker ended; ``status``: what ``os.waitpid`` returned for it."""
        head = self._read_head()
        killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0
        done = head.phase == _FINISHED
        if done and code == 0:
            code = head.code
        return End(done, code, killed_by, head.phase >= _PRINTING, self._read_text(self._WORK, self._SIZE))

    def _read_head(self) -> _Head:
        return _Head(*self._HEAD.unpack_from(self._memory))

    def _read_text(self, start: int, end: int) -> str:
        """The text that ``_write_text`` wrote there: it ends at the first byte 0."""
        return self._memory[start:end].split(b"\0", 1)[0].decode("utf-8", "replace")


def is_possible() -> bool:
    """Whether this process can be forked: not with other threads or torch, whose state would be broken in the fork."""
    return hasattr(signal, "sigtimedwait") and threading.active_count() == 1 and "torch" not in sys.modules


def supervise(work: Callable[[Page, Mapping[Key, str]], int]) -> int | End:
    """Fork a worker that calls ``work``. Returns in both processes.

    In the worker, returns the result of ``work``; in this process, how the worker ended. Arguments of ``work``: the
    page, and the plugins whose light modules ended earlier workers -> how they did. If the import of a light module
    ended the worker, another worker is forked, which is told not to import that module.
    """
    refused: dict[Key, str] = {}
    gc.freeze()  # garbage collection would write to all objects, and so copy the memory that both processes share
    while True:
        page, signals = Page(), _Signals()
        worker, lifeline = _fork()
        if worker == 0:
            signals.release()
            page.open()
            return work(page, refused)
        status, in_time = _await_worker(worker, page, signals)
        signals.release()
        os.close(lifeline)
        end = page.end(status)
        if signals.stop:  # the user wants the command to end, so it is not run again
            # a worker that was killed for its import ended by SIGKILL, and not by the user's signal
            return end._replace(signal=signals.stop) if not in_time else end
        if not page.importing or page.plugin in refused:  # no import ended the worker, or refusing did not help
            return end
        refused[page.plugin] = end.how if in_time else f"took longer than {LIMIT:g} s"


def _fork() -> tuple[int, int]:
    """Fork a worker that is killed when this process ends, even if that is killed.

    Returns (process id of the worker, or 0 in the worker itself; this process's end of a pipe). When that end of the
    pipe is closed, the system kills the worker.
    """
    import fcntl  # imported late: Windows lacks it, and has no forks

    read, write = os.pipe()
    worker = os.fork()
    if worker:
        os.close(read)
        return worker, write
    os.close(write)
    # When the only writing end is closed, the system sends this worker the signal set here. prctl(PR_SET_PDEATHSIG)
    # would be simpler, but needs ctypes, whose import takes 3 ms in every command.
    fcntl.fcntl(read, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(read, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(read, fcntl.F_SETFL, fcntl.fcntl(read, fcntl.F_GETFL) | os.O_ASYNC)
    return 0, read


class _Signals:
    """Blocks signals, so that this process receives them one by one by ``take``.

    ``stop``: the last signal that asks a process to end, such as SIGTERM; 0 if none came.
    """

    def __init__(self) -> None:
        """Block the signals of ``_RELAYED`` that are not ignored, and SIGCHLD, which tells that the worker ended."""
        ignored = {s for s in _RELAYED if signal.getsignal(s) is signal.SIG_IGN}  # as under nohup
        self.relayed, self.stop = _RELAYED - ignored, 0
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, {*self.relayed, signal.SIGCHLD})
        # if SIGCHLD is ignored, the system keeps no exit codes
        self._child = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def take(self) -> signal.struct_siginfo | None:
        """Wait for the next signal, at most _POLL seconds; None if none came."""
        received = signal.sigtimedwait({*self.relayed, signal.SIGCHLD}, _POLL)
        if received is not None and received.si_signo in _STOPS:
            self.stop = received.si_signo
        return received

    def release(self) -> None:
        """Unblock the signals and restore the handler of SIGCHLD."""
        signal.signal(signal.SIGCHLD, self._child)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)


def _await_worker(worker: int, page: Page, signals: _Signals) -> tuple[int, bool]:
    """Wait until the worker has ended, and pass signals on to it meanwhile.

    Returns (status of ``os.waitpid``, False if the worker was killed because a light module took longer than LIMIT). A
    signal from a terminal reaches all processes of the terminal, so the worker has it already. A signal that another
    process sent is passed on; if it was sent to the worker as well, the worker gets it twice.
    """
    importing, polls = 0, 0  # number of the import that was going on last time, and for how many polls it has
    while True:
        received = signals.take()
        # si_code is SI_USER or another code up to 0 if a process sent the signal
        if received is not None and received.si_signo != signal.SIGCHLD and received.si_code <= 0:
            os.kill(worker, received.si_signo)
        ended, status = os.waitpid(worker, os.WNOHANG)
        if ended:
            return status, True
        # Polls are counted instead of reading a clock, so that time in which the job was stopped does not count.
        polls = polls + (received is None) if page.importing == importing != 0 else 0
        importing = page.importing
        if polls * _POLL >= LIMIT:
            os.kill(worker, signal.SIGKILL)
            return os.waitpid(worker, 0)[1], False


def exit_code(end: End, succeeds: bool = False) -> int:
    """The exit code of the command: 128 plus the number of the signal that killed the worker, else ``end.code``.

    A worker that exits with 0 although the command had not finished has failed: the exit code is 1. With ``succeeds``,
    for shell completion, the exit code is 0 even so: argcomplete ends the worker by exiting.
    """
    if end.signal:
        return 128 + end.signal
    return end.code or int(not end.done and not succeeds)


def leave(end: End, code: int) -> NoReturn:
    """End this process as the worker ended: by the same signal or, if no signal killed it, with the exit code ``code``.

    No clean-up code of Python runs.
    """
    if end.signal:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no core dump: only the worker's is of interest
        if end.signal != signal.SIGKILL:
            signal.signal(end.signal, signal.SIG_DFL)
        os.kill(os.getpid(), end.signal)  # has no effect on the first process of a container
    os._exit(code)  # nothing is open here, and an orderly exit of the interpreter would cost every command 5 ms
