"""A command is carried out by a worker, a fork of the process that was started, which sees how the worker ends.

What native code of a plugin does to its process, Python in that process never learns: ``exit(0)``, ``_exit(0)``, a
crash, a loop without end. So the process that was started imports nothing of plugins, waits, and knows from a page of
memory that both share what was at work and whether the command was done. A light module that ends the worker, or keeps
it for more than LIMIT, is refused, and the command begins again without that plugin.
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
"""Seconds that the light module of one plugin may take to be imported. 0.5 are worth a warning already, and one that
imports torch, which it should not, takes 10 on a busy machine."""
_POLL = 0.25
_STOPS = {s for s in signal.Signals if s.name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")}  # Windows lacks some
_RELAYED = {*_STOPS, *(s for s in signal.Signals if s.name in ("SIGUSR1", "SIGUSR2"))}


class End(NamedTuple):
    """How a worker ended.

    ``code``: the exit code, if the command was done or ended so; ``signal`` if one killed it. ``shown``: the result may
    stand on stdout. ``during``: what was at work, if the command was not done.
    """

    done: bool
    code: int
    signal: int
    shown: bool
    during: str

    @property
    def how(self) -> str:
        """``killed the process (Segmentation fault)``, as ``delegraph doctor`` says it."""
        if self.signal:
            return f"killed the process ({signal.strsignal(self.signal)})"
        return f"ended the process with exit code {self.code}"


class Page:
    """What the worker tells: how far the command is, what is at work, and which light module is being imported.

    It is memory and no pipe, so that nobody has to read along, and what a dead process wrote is still there.
    """

    _HEAD = struct.Struct("<BBI")
    """How far it is, the exit code, and the number of imports of light modules that have begun; 0 outside of them."""
    _IMPORT, _WORK, _SIZE = 16, 2048, 16384

    def __init__(self) -> None:
        self._memory, self._worker, self._imports = mmap.mmap(-1, self._SIZE), 0, 0

    # --- in the worker

    def open(self) -> None:
        """From now on it is this process that tells, and none that it forks."""
        self._worker = os.getpid()

    def begin_import(self, plugin: Key | None) -> None:
        """The light module of ``plugin`` is imported now; None: it was, or has failed as Python code fails."""
        self._imports += 1
        if plugin is not None:
            self._put(self._IMPORT, self._WORK, "\n".join(plugin))
        self._mark(2, 0 if plugin is None else self._imports)

    def begin_work(self, line: str) -> None:
        """What is at work now; "" if nothing is."""
        self._put(self._WORK, self._SIZE, line)

    def show(self) -> None:
        """The result is being written to stdout."""
        self._mark(0, 1)

    def finish(self, code: int) -> None:
        """The command is done, and its exit code is ``code``."""
        self._mark(1, code)
        self._mark(0, 2)

    def _mark(self, field: int, value: int) -> None:
        if os.getpid() == self._worker:
            head = list(self._HEAD.unpack_from(self._memory))
            head[field] = value
            self._HEAD.pack_into(self._memory, 0, *head)

    def _put(self, start: int, end: int, text: str) -> None:
        if os.getpid() == self._worker:
            data = text.encode("utf-8", "replace")[: end - start - 1] + b"\0"
            self._memory[start : start + len(data)] = data

    # --- in the process that waits

    @property
    def importing(self) -> int:
        """A number that is another one for each import of a light module; 0 while none is imported."""
        return int(self._HEAD.unpack_from(self._memory)[2])

    @property
    def plugin(self) -> Key:
        """The plugin whose light module is being imported."""
        distribution, _, name = self._text(self._IMPORT, self._WORK).partition("\n")
        return distribution, name

    def end(self, status: int) -> End:
        """How the worker ended; ``status`` is what the system says of it."""
        phase, code, _ = self._HEAD.unpack_from(self._memory)
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        exited = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0
        done = phase == 2
        return End(done, exited or (code if done else 0), number, phase > 0, self._text(self._WORK, self._SIZE))

    def _text(self, start: int, end: int) -> str:
        return self._memory[start:end].split(b"\0", 1)[0].decode("utf-8", "replace")


def is_possible() -> bool:
    """Whether this process can be forked: other threads, and what torch has set up, would not live on in the worker."""
    return hasattr(signal, "sigtimedwait") and threading.active_count() == 1 and "torch" not in sys.modules


def supervise(work: Callable[[Page, Mapping[Key, str]], int]) -> int | End:
    """Let a worker do ``work``. There, what that returns is returned; here, how the worker ended.

    ``work`` is told what became of the plugins whose light modules ended workers before it.
    """
    refused: dict[Key, str] = {}
    gc.freeze()  # no collection looks at what is there now, and so none writes to the pages that both share
    while True:
        page, signals = Page(), _Signals()
        worker, lifeline = _fork()
        if worker == 0:
            signals.release()
            page.open()
            return work(page, refused)
        status, patient = _await(worker, page, signals)
        signals.release()
        os.close(lifeline)
        end = page.end(status)
        if signals.stop:  # nobody waits for another attempt
            return end._replace(signal=signals.stop) if not patient else end
        if not page.importing or page.plugin in refused:
            return end
        refused[page.plugin] = end.how if patient else f"took longer than {LIMIT:g} s"


def _fork() -> tuple[int, int]:
    """Fork a worker that does not outlive this process, whatever ends it: SIGKILL reaches this one only.

    The process id of the worker (there it is 0), and this process's end of the pipe by which the worker learns of it.
    """
    import fcntl  # Windows has neither this nor forks

    read, write = os.pipe()
    worker = os.fork()
    if worker:
        os.close(read)
        return worker, write
    os.close(write)
    # When the only writing end is closed, the system sends the signal that was asked for. prctl(PR_SET_PDEATHSIG) says
    # it in one call, but is reached by ctypes only, whose import would cost every command 3 ms.
    fcntl.fcntl(read, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(read, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(read, fcntl.F_SETFL, fcntl.fcntl(read, fcntl.F_GETFL) | os.O_ASYNC)
    return 0, read


class _Signals:
    """Blocked from now on: this process takes them one by one. ``stop``: one of them that asks for the end."""

    def __init__(self) -> None:
        ignored = {s for s in _RELAYED if signal.getsignal(s) is signal.SIG_IGN}  # as under nohup
        self.relayed, self.stop = _RELAYED - ignored, 0
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, {*self.relayed, signal.SIGCHLD})
        # where SIGCHLD is ignored, the system keeps no exit codes
        self._child = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def take(self) -> signal.struct_siginfo | None:
        """The next signal, or None if there is none for a while."""
        taken = signal.sigtimedwait({*self.relayed, signal.SIGCHLD}, _POLL)
        if taken is not None and taken.si_signo in _STOPS:
            self.stop = taken.si_signo
        return taken

    def release(self) -> None:
        """Let this process handle signals as before."""
        signal.signal(signal.SIGCHLD, self._child)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)


def _await(worker: int, page: Page, signals: _Signals) -> tuple[int, bool]:
    """Pass signals on until the worker has ended; its status, and False if it was killed for a light module's sake.

    What comes from a terminal reaches all processes that it belongs to, the worker among them. What another process
    sends to this one alone is passed on. To whom else it was sent nobody can know, so the worker may get it twice.
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
    """The worker's exit code, and 1 instead of 0 for what was not done; 128 and the number of a signal.

    ``succeeds``: nothing tells whether it was done, and 0 is taken at its word.
    """
    return 128 + end.signal if end.signal else end.code or int(not end.done and not succeeds)


def leave(end: End, code: int) -> NoReturn:
    """End this process as the worker ended: by the same signal, or with ``code``."""
    if end.signal:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the worker's is the one that says something
        if end.signal != signal.SIGKILL:
            signal.signal(end.signal, signal.SIG_DFL)
        os.kill(os.getpid(), end.signal)  # in vain for the first process of a container
    os._exit(code)  # nothing is open here, and to take the interpreter apart would cost every command 5 ms
