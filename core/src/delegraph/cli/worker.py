"""A command is carried out by a worker.

A fork of the process that was started, which waits and sees how the worker ends. Python cannot notice what native code
of a plugin does to its own process: ``exit(0)``, ``_exit(0)``, a crash, an endless loop. So the process that was
started imports nothing of plugins. It waits, and a page of memory that it shares with the worker tells it what was at
work, and whether the command was done. If a light module ends the worker, or keeps it busy for more than LIMIT, the
command begins again in a new worker without that plugin.
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
"""Distribution and entry point's name of a plugin."""
LIMIT = 30.0
"""How many seconds the import of one light module may take.

0.5 are worth a warning already; one that imports torch, which it should not, takes 10 on a busy machine.
"""
_POLL = 0.25
_STOPS = {s for s in signal.Signals if s.name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")}  # Windows lacks some
_RELAYED = {*_STOPS, *(s for s in signal.Signals if s.name in ("SIGUSR1", "SIGUSR2"))}


class End(NamedTuple):
    """How a worker ended.

    ``done``: whether the command was done. ``code``: the exit code, if it was, or if the worker exited; ``signal``: the
    signal that killed it, else 0. ``shown``: whether the result may be on stdout already. ``during``: what was at work,
    if the command was not done.
    """

    done: bool
    code: int
    signal: int
    shown: bool
    during: str

    @property
    def how(self) -> str:
        """How it ended, in the words of ``delegraph doctor``: ``killed the process (Segmentation fault)``."""
        if self.signal:
            return f"killed the process ({signal.strsignal(self.signal)})"
        return f"ended the process with exit code {self.code}"


class Page:
    """What the worker tells: how far the command is, what is at work, and which light module is being imported.

    It is memory, and not a pipe: nobody has to keep reading it, and what a dead process wrote is still there.
    """

    _HEAD = struct.Struct("<BBI")
    """How far the command is, its exit code, and the number of the present import (0: no light module is imported).

    How far: 1 while the result is being shown, 2 when the command is done.
    """
    _IMPORT, _WORK, _SIZE = 16, 2048, 16384

    def __init__(self) -> None:
        """Map the page, which processes that are forked later share."""
        self._memory, self._worker, self._imports = mmap.mmap(-1, self._SIZE), 0, 0

    # --- in the worker

    def open(self) -> None:
        """Let this process write from now on, and none that it forks."""
        self._worker = os.getpid()

    def begin_import(self, plugin: Key | None) -> None:
        """The light module of ``plugin`` is being imported now; None: that is over."""
        self._imports += 1
        if plugin is not None:
            self._put(self._IMPORT, self._WORK, "\n".join(plugin))
        self._mark(2, 0 if plugin is None else self._imports)

    def begin_work(self, line: str) -> None:
        """``line`` is at work now; "" if nothing is."""
        self._put(self._WORK, self._SIZE, line)

    def show(self) -> None:
        """The result is being written to stdout."""
        self._mark(0, 1)

    def finish(self, code: int) -> None:
        """The command is done, with the exit code ``code``."""
        self._mark(1, code)
        self._mark(0, 2)

    def _mark(self, field: int, value: int) -> None:
        """Write a number of the head, if this process is the worker."""
        if os.getpid() == self._worker:
            head = list(self._HEAD.unpack_from(self._memory))
            head[field] = value
            self._HEAD.pack_into(self._memory, 0, *head)

    def _put(self, start: int, end: int, text: str) -> None:
        """Write a text, if this process is the worker."""
        if os.getpid() == self._worker:
            data = text.encode("utf-8", "replace")[: end - start - 1] + b"\0"
            self._memory[start : start + len(data)] = data

    # --- in the process that waits

    @property
    def importing(self) -> int:
        """The number of the import of a light module that is under way, different for each; 0 if none is."""
        return int(self._HEAD.unpack_from(self._memory)[2])

    @property
    def plugin(self) -> Key:
        """The plugin whose light module is being imported."""
        distribution, _, name = self._text(self._IMPORT, self._WORK).partition("\n")
        return distribution, name

    def end(self, status: int) -> End:
        """How the worker ended, given the ``status`` that the system reports."""
        phase, code, _ = self._HEAD.unpack_from(self._memory)
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        exited = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0
        done = phase == 2
        return End(done, exited or (code if done else 0), number, phase > 0, self._text(self._WORK, self._SIZE))

    def _text(self, start: int, end: int) -> str:
        return self._memory[start:end].split(b"\0", 1)[0].decode("utf-8", "replace")


def is_possible() -> bool:
    """Whether this process can be forked. Other threads, and what torch has set up, would not exist in the worker."""
    return hasattr(signal, "sigtimedwait") and threading.active_count() == 1 and "torch" not in sys.modules


def supervise(work: Callable[[Page, Mapping[Key, str]], int]) -> int | End:
    """Let a worker do ``work``. The worker returns what ``work`` returns; this process returns how the worker ended.

    ``work`` gets the page, and the plugins whose light modules ended earlier workers, with how they did.
    """
    refused: dict[Key, str] = {}
    gc.freeze()  # collections leave existing objects alone, and so do not copy the memory that both processes share
    while True:
        page, signals = Page(), _Signals()
        worker, lifeline = _fork()
        if worker == 0:
            signals.release()
            page.open()
            return work(page, refused)
        status, patient = _await_worker(worker, page, signals)
        signals.release()
        os.close(lifeline)
        end = page.end(status)
        if signals.stop:  # the user wants the command to end, so there is no other attempt
            return end._replace(signal=signals.stop) if not patient else end
        if not page.importing or page.plugin in refused:
            return end
        refused[page.plugin] = end.how if patient else f"took longer than {LIMIT:g} s"


def _fork() -> tuple[int, int]:
    """Fork a worker that does not outlive this process, even if this one is killed.

    Returns the process id of the worker (0 in the worker) and an end of a pipe; closing this process's end ends the
    worker.
    """
    import fcntl  # Windows has neither this nor forks

    read, write = os.pipe()
    worker = os.fork()
    if worker:
        os.close(read)
        return worker, write
    os.close(write)
    # When the only writing end is closed, the system sends the worker the signal that is set here. One call of
    # prctl(PR_SET_PDEATHSIG) would do, but it needs ctypes, whose import would cost every command 3 ms.
    fcntl.fcntl(read, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(read, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(read, fcntl.F_SETFL, fcntl.fcntl(read, fcntl.F_GETFL) | os.O_ASYNC)
    return 0, read


class _Signals:
    """Blocks signals, so that this process takes them one by one.

    ``stop``: the last one that asked the command to end.
    """

    def __init__(self) -> None:
        ignored = {s for s in _RELAYED if signal.getsignal(s) is signal.SIG_IGN}  # as under nohup
        self.relayed, self.stop = _RELAYED - ignored, 0
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, {*self.relayed, signal.SIGCHLD})
        # if SIGCHLD is ignored, the system keeps no exit codes
        self._child = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def take(self) -> signal.struct_siginfo | None:
        """The next signal; None if none comes for a while."""
        taken = signal.sigtimedwait({*self.relayed, signal.SIGCHLD}, _POLL)
        if taken is not None and taken.si_signo in _STOPS:
            self.stop = taken.si_signo
        return taken

    def release(self) -> None:
        """Let this process handle signals as before."""
        signal.signal(signal.SIGCHLD, self._child)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)


def _await_worker(worker: int, page: Page, signals: _Signals) -> tuple[int, bool]:
    """Pass signals on until the worker has ended. Returns its status.

    And False if it was killed for a slow light module. A signal from a terminal reaches all its processes, so the
    worker has it already. One that another process sends to this process is passed on. It cannot be known who else got
    that one, so the worker may get it twice.
    """
    importing, polls = 0, 0
    while True:
        taken = signals.take()
        if taken is not None and taken.si_signo != signal.SIGCHLD and taken.si_code <= 0:  # SI_USER and its kind
            os.kill(worker, taken.si_signo)
        ended, status = os.waitpid(worker, os.WNOHANG)
        if ended:
            return status, True
        # Polls are counted and no clock is read: a time in which this job was stopped does not count.
        polls = polls + (taken is None) if page.importing == importing != 0 else 0
        importing = page.importing
        if polls * _POLL >= LIMIT:
            os.kill(worker, signal.SIGKILL)
            return os.waitpid(worker, 0)[1], False


def exit_code(end: End, succeeds: bool = False) -> int:
    """The exit code of the command: 128 plus the number of a signal; else the worker's, but 1 for 0 if it was not done.

    ``succeeds``: whether an exit code of 0 is believed although the worker did not say that it was done.
    """
    return 128 + end.signal if end.signal else end.code or int(not end.done and not succeeds)


def leave(end: End, code: int) -> NoReturn:
    """End this process as the worker ended: by the same signal, or with ``code``."""
    if end.signal:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # only the worker's core dump says something
        if end.signal != signal.SIGKILL:
            signal.signal(end.signal, signal.SIG_DFL)
        os.kill(os.getpid(), end.signal)  # has no effect on the first process of a container
    os._exit(code)  # nothing is open here, and an orderly exit of the interpreter would cost every command 5 ms
