"""Compile in other processes, by stand-ins for backends.

A stand-in is a class like the backend's own. Its ``preprocess`` writes the partition as
bytes, lets a worker compile it, and returns the worker's result. Workers are processes
of this machine, or those of an executor.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from typing import Any

import torch
from delegraph import get_backend
from delegraph.backend import BackendDetails, CompileSpec, PreprocessResult
from delegraph.errors import DelegraphError, FormatError, OptionError, Unsupported
from delegraph.plugin import IN_PROCESS
from delegraph_programs import TRACING, all_nodes
from torch.export import ExportedProgram

from .constants import INLINE, Folder
from .entry_bytes import read_result
from .execute import run, versions_of, warm
from .failures import error_of
from .forms import Form, Memory, write
from .message import pack, unpack
from .supervise import Limits, WorkerProcess, private_folder

LOG = logging.getLogger("delegraph.progress")
_WAITING = 64
"""The most partitions that wait for an executor at a time, each in a thread here."""
_WARMED = 8
LEAST_MEMORY = 32_000_000
"""The least memory limit in bytes.

A worker that has imported torch uses about as much again, so a smaller limit would not
hold.
"""
Programs = Mapping[str, Sequence[ExportedProgram]]
Specs = Mapping[str, Sequence[Sequence[CompileSpec]]]


class Remote(BackendDetails, abstract=True):
    """A backend that compiles in processes of its own already."""

    @classmethod
    def limited(cls, limits: Limits) -> type[BackendDetails]:
        """Return the same backend with limits for a partition."""
        raise NotImplementedError


class Workers:
    """The processes of one lowering.

    ``executor``: None, threads, or an executor of other processes. ``isolated``: each
    partition is compiled in a process that it may end. ``time_limit`` (seconds) and
    ``memory_limit`` (bytes) are for one partition. ``python``: the interpreter of
    another environment for the processes.
    """

    def __init__(
        self,
        executor: Any = None,
        isolated: bool = False,
        time_limit: float | None = None,
        memory_limit: int | None = None,
        python: str | None = None,
    ) -> None:
        threads = executor is None or isinstance(executor, ThreadPoolExecutor)
        self._foreign = None if threads else executor
        self._python = python
        self._limits = Limits(
            time_limit, None if memory_limit is None else int(memory_limit)
        )
        self._isolated = threads or isolated or self._limits != Limits()
        self.executor: Executor | None = (
            executor if threads else ThreadPoolExecutor(_WAITING, "delegraph-waiting")
        )
        # how many workers of ours may stand in for an executor at a time: as many as it
        # has, as far as it says that
        self._standing_in = threading.BoundedSemaphore(max(_size_of(self._foreign), 1))
        self.path = private_folder()
        self._constants = Folder(self.path)
        self._idle: list[WorkerProcess] = []
        self._all: list[WorkerProcess] = []
        self._lock = threading.Lock()
        self._refused: dict[Any, tuple[str, str | None]] = {}

    def prepare(self, backends: Sequence[str]) -> None:
        """Start workers, which import these backends while the caller does something
        else.

        Backends of this distribution have processes of their own.
        """
        if backends and all(name.startswith("delegraph-workers/") for name in backends):
            return
        if self._foreign is not None:
            # what does not say how many processes it has may start one for each call,
            # or wait in a queue of a cluster its jobs are done in workers of ours then
            with contextlib.suppress(BrokenExecutor):
                for _ in range(_size_of(self._foreign)):
                    self._submit(warm, tuple(backends))
            return
        for _ in range(1 if self.executor is None else _size_of(self.executor)):
            self._idle.append(self._start())
            self._idle[-1].prepare(backends)

    def close(self) -> None:
        """End all processes that were started here; executors belong to their owners."""
        if self._foreign is not None and self.executor is not None:
            self.executor.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            workers = self._all
            self._all = []
            self._idle = []
        for worker in workers:
            worker.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def forget(self) -> None:
        """Forget refused partitions, such as those that ended a process: they may work
        later.
        """
        self._refused.clear()

    def stand_in(
        self, backend: type[BackendDetails], name: str, producer: tuple[str, str]
    ) -> type[BackendDetails]:
        """Return a class that compiles like ``backend``, but in a worker.

        ``name`` is ``distribution/name``. Raises OptionError for a backend that only
        this process has.
        """
        if issubclass(backend, Remote):
            limited = (
                backend if self._limits == Limits() else backend.limited(self._limits)
            )
            return limited if self._foreign is None else self._a_few_at_a_time(limited)
        if producer[0] == IN_PROCESS:
            text = (
                f"backend {backend.__name__} was registered in this process, and no"
                " other process can find it"
            )
            hint = (
                "install a distribution that declares it, or compile here: without"
                " isolation, limits and processes"
            )
            raise OptionError("option-invalid", text, hint=hint)

        known = versions_of(producer[0])

        def preprocess(
            edge_program: ExportedProgram, compile_specs: list[CompileSpec]
        ) -> PreprocessResult:
            return self.compile(
                backend.__name__,
                name,
                known,
                {"": [edge_program]},
                {"": [compile_specs]},
            )[""][0]

        def preprocess_multimethod(
            cls: type, edge_programs: Programs, compile_specs: Specs
        ) -> dict[str, list[PreprocessResult]]:
            return self.compile(
                backend.__name__, name, known, edge_programs, compile_specs
            )

        body: dict[str, Any] = {
            "__module__": backend.__module__,
            "__qualname__": backend.__qualname__,
            "__doc__": backend.__doc__,
            "thread_safe": True,
            "keeps_names": backend.keeps_names,
            "fingerprint": staticmethod(backend.fingerprint),
            "preprocess": staticmethod(preprocess),
        }
        default: Any = BackendDetails.preprocess_multimethod
        if (
            getattr(backend.preprocess_multimethod, "__func__", None)
            is not default.__func__
        ):
            body["preprocess_multimethod"] = classmethod(preprocess_multimethod)
        return type(backend.__name__, (BackendDetails,), body)

    def _a_few_at_a_time(self, backend: type[BackendDetails]) -> type[BackendDetails]:
        """Limit the processes of a backend that compiles in its own processes.

        Otherwise each thread that waits for the executor would start one.
        """

        def preprocess(
            edge_program: ExportedProgram, compile_specs: list[CompileSpec]
        ) -> PreprocessResult:
            with self._standing_in:
                return backend.preprocess(edge_program, compile_specs)

        body = {
            "__module__": backend.__module__,
            "__doc__": backend.__doc__,
            "preprocess": staticmethod(preprocess),
        }
        return type(backend.__name__, (backend,), body)

    def compile(
        self,
        backend: str,
        name: str,
        versions: Mapping[str, str],
        programs: Programs,
        specs: Specs,
        limits: Limits | None = None,
    ) -> dict[str, list[PreprocessResult]]:
        """Return a worker's results for partitions, by method, in their order.

        ``backend`` is the name of the backend's class, ``name`` is
        ``distribution/name``. ``versions``: those of distributions that the worker must
        have.
        """
        limits = limits or self._limits
        try:
            forms = {
                method: [write(program) for program in listed]
                for method, listed in programs.items()
            }
        except Unsupported:
            if self._isolated:
                raise
            with TRACING:  # it cannot be sent: it is compiled here
                here = get_backend(name)
                return here.preprocess_multimethod(
                    programs, {m: [list(s) for s in g] for m, g in specs.items()}
                )
        flat = [form for listed in forms.values() for form in listed]
        header: dict[str, Any] = {
            "backend": name,
            "class": backend,
            "versions": dict(versions),
            "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "programs": [
                [m, [[s.key, s.value.hex()] for s in each]]
                for m in programs
                for each in specs[m]
            ],
            "isolated": self._isolated,
            "time_limit": limits.seconds,
            "memory_limit": limits.memory,
        }
        nodes = {
            n.name: n
            for listed in programs.values()
            for p in listed
            for n in all_nodes(p.graph_module)
        }
        place = _place(backend, programs)
        key = name, limits, repr(header["programs"]), tuple(form.key for form in flat)
        # the same partition under its own names: it would end a worker again
        if key in self._refused:
            message, hint = self._refused[key]
            raise Unsupported("unsupported", message, hint=hint)
        try:
            answer = self.send(header, flat, place, limits)
            results = self._results(answer, flat, nodes, limits)
        except Unsupported as refusal:
            if refusal.node is None:
                # its traceback would keep the program
                self._refused[key] = refusal.message, refusal.hint
            raise
        ordered = iter(results)
        return {
            method: [next(ordered) for _ in listed] for method, listed in forms.items()
        }

    def send(
        self,
        header: dict[str, Any],
        forms: Sequence[Form],
        place: str,
        limits: Limits | None = None,
    ) -> tuple[bytes, str]:
        """Return the answer to a job about programs, and the printed text."""
        limits = limits or self._limits
        packed, memories = self.lay_out(forms)
        job = pack({**header, "inline": [], "folder": str(self.path)}, packed)
        if self._foreign is None:
            return self._in_process(job, place, limits)

        def inlined() -> bytes:
            whole = [b"".join(memory.pieces()) for memory in memories.values()]
            return pack(
                {**header, "inline": [d.hex() for d in memories], "folder": None},
                [*packed, *whole],
            )

        return self._in_executor(job, inlined, place, limits)

    def lay_out(self, forms: Sequence[Form]) -> tuple[list[bytes], dict[bytes, Memory]]:
        """Return the bytes of programs, and their large constants by digest, in the
        folder.
        """
        memories = {
            m.digest: m for form in forms for m in form.memories if m.size >= INLINE
        }
        for memory in memories.values():
            self._constants.add(memory)
        return [b"".join(form.pieces()) for form in forms], memories

    def _in_process(self, job: bytes, place: str, limits: Limits) -> tuple[bytes, str]:
        """Let a process of this machine do a job; replace it later if it does not
        survive.
        """
        worker = self._take()
        LOG.info("%s, in process %d", place, worker.pid)
        try:
            return worker.run(job, limits)
        finally:
            self._give(worker, limits.memory)

    def _in_executor(
        self, job: bytes, inlined: Callable[[], bytes], place: str, limits: Limits
    ) -> tuple[bytes, str]:
        """Let the executor do a job. If it breaks, a worker of this machine does it."""
        try:
            answer = self._asked(job, place)
            header, parts = _unpacked(answer)
            if "absent" in header or (
                "wrapped" in header and "absent" in _unpacked(bytes(parts[0]))[0]
            ):
                # of a machine that does not see the folder
                answer = self._asked(inlined(), place)
                header, parts = _unpacked(answer)
        except BrokenExecutor:  # it takes no jobs any more
            LOG.info("%s, once more in a process of its own: the executor broke", place)
            with self._standing_in:
                return self._in_process(job, place, limits)
        if "wrapped" in header:
            return bytes(parts[0]), str(header.get("output", ""))
        if "pid" in header:
            LOG.info(
                "%s, compiled by process %s of %s",
                place,
                header["pid"],
                header.get("host"),
            )
        return bytes(answer), ""

    def _asked(self, job: bytes, place: str) -> Any:
        """Return the executor's answer to a job.

        If its worker dies, the job is repeated once.

        Raises BrokenExecutor if it accepts no more jobs, Unsupported if it loses the
        job twice.
        """
        try:
            return self._submit(run, job).result()
        except (BrokenExecutor, DelegraphError):
            raise
        except Exception as e:
            LOG.info("%s, once more: %s", place, type(e).__name__)
        try:
            return self._submit(run, job).result()
        except (BrokenExecutor, DelegraphError):
            raise
        except Exception as again:
            text = f"the executor lost it twice: {type(again).__name__}: {again}"
            raise Unsupported("unsupported", text) from again

    def _submit(self, function: Callable[[Any], Any], given: Any) -> Any:
        """Return the executor's future of a call.

        Raises OptionError if it was shut down.
        """
        foreign: Any = self._foreign
        try:
            return foreign.submit(function, given)
        except BrokenExecutor:
            raise
        except Exception as e:
            text = (
                f"the {type(foreign).__name__} takes no calls: {type(e).__name__}: {e}"
            )
            raise OptionError(
                "option-invalid", text, hint="give one that is open, or none"
            ) from e

    def _results(
        self,
        answer: tuple[bytes, str],
        forms: Sequence[Form],
        nodes: Mapping[str, Any],
        limits: Limits,
    ) -> list[Any]:
        """Return the checked results of an answer, or raise its error."""
        data, printed = answer
        header, parts = unpack(data)
        if "error" in header:
            raise self.error(header["error"], nodes, limits)
        if "absent" in header:
            raise FormatError(
                "format-invalid", f"a worker cannot read {header['absent']}"
            )
        if len(parts) != len(forms):
            raise FormatError(
                "format-invalid",
                f"a worker returned {len(parts)} results for {len(forms)} partitions",
            )
        results = [
            read_result("", bytes(part), form)
            for part, form in zip(parts, forms, strict=True)
        ]
        for result in results:
            result.output = result.output or printed[-4096:].rstrip()
        return results

    def error(
        self, told: Any, nodes: Mapping[str, Any], limits: Limits
    ) -> BaseException:
        """Return a worker's error.

        A limit or an exit becomes a refusal of the partition.
        """
        try:
            error = error_of(told, nodes)
        except (KeyError, TypeError) as e:
            return FormatError(
                "format-invalid", f"a worker tells of an error in no known form: {e!r}"
            )
        out_of_memory = isinstance(
            error, MemoryError
        ) or "can't allocate memory" in str(error)
        if self._isolated and limits.memory is not None and out_of_memory:
            text = (
                f"it needs more than {limits.memory / 1e6:.0f} MB of memory:"
                f" {error or 'MemoryError'}"
            )
            return Unsupported("unsupported", text, hint="allow more with memory_limit")
        if self._isolated and isinstance(error, SystemExit):
            return Unsupported("unsupported", f"it exited: {error}")
        return error

    def _take(self) -> WorkerProcess:
        """Return an idle worker."""
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.alive:
                    return worker
        return self._start()

    def _start(self) -> WorkerProcess:
        worker = WorkerProcess(self.path, self._python)
        with self._lock:
            self._all.append(worker)
        return worker

    def _give(self, worker: WorkerProcess, limit: int | None) -> None:
        """Keep a worker for the next job, unless it ended or keeps too much memory."""
        if worker.alive and (limit is None or worker.grown <= limit / 2):
            with self._lock:
                self._idle.append(worker)
        else:
            with self._lock:
                self._all = [other for other in self._all if other is not worker]
            worker.close()


def _size_of(executor: Any) -> int:
    """Return the number of an executor's workers, at most _WARMED; 0 if unknown."""
    size = getattr(executor, "_max_workers", 0)
    return min(size, _WARMED) if isinstance(size, int) else 0


def _unpacked(answer: Any) -> tuple[dict[str, Any], list[memoryview]]:
    """Return the parts of an executor's answer, which may be any object."""
    if not isinstance(answer, bytes):
        text = (
            f"the executor returned {type(answer).__name__} for a job, and bytes are"
            " wanted"
        )
        raise FormatError("format-invalid", text)
    return unpack(answer)


def _place(backend: str, programs: Programs) -> str:
    """Describe the partitions for the log."""
    metas = [
        program.graph_module.meta for listed in programs.values() for program in listed
    ]
    places = (
        meta.get("local:place", f"{meta.get('partition')} of {meta.get('method')}")
        for meta in metas
    )
    return ", ".join(places) + f", {backend}"


def expect_no_fork(executor: Any) -> None:
    """Raise OptionError for forked processes: torch fails in them once it has used
    threads.
    """
    context = getattr(executor, "_mp_context", None)
    method = getattr(context, "get_start_method", lambda: None)()
    if method == "fork":
        text = (
            f"the processes of this {type(executor).__name__} are forked, in which"
            " torch does not work reliably"
        )
        hint = "ProcessPoolExecutor(2, mp_context=multiprocessing.get_context('spawn'))"
        raise OptionError("option-invalid", text, hint=hint)
