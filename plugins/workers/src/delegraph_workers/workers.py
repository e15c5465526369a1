"""Compile in other processes, by stand-ins for backends.

A stand-in is a class like the backend's own. Its ``preprocess`` writes the partition as
bytes, lets a worker compile it, and returns the worker's result. Workers are processes
of this machine or of an executor.
"""

from __future__ import annotations

import contextlib
import itertools
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

from .constants import Folder
from .entry_bytes import read_result
from .execute import run, versions_of, warm
from .failures import read_error
from .forms import INLINE, Form, Memory, write
from .message import pack, unpack
from .supervise import Limits, WorkerProcess, private_folder

LOG = logging.getLogger("delegraph.progress")
_WAITING = 64
"""The most partitions that wait for an executor at a time, each in a thread."""
_WARMED = 8
"""The most workers of an executor that are prepared: each preparation takes seconds."""
LEAST_MEMORY = 32_000_000
"""The least memory limit in bytes.

A worker uses about as much for itself, so a smaller limit would have no effect.
"""
Programs = Mapping[str, Sequence[ExportedProgram]]
"""Method -> the programs of its partitions."""
Specs = Mapping[str, Sequence[Sequence[CompileSpec]]]


class Remote(BackendDetails, abstract=True):
    """A backend that compiles in other processes without isolation, too."""

    @classmethod
    def limited(cls, limits: Limits) -> type[BackendDetails]:
        """Return the same backend with limits for a partition."""
        raise NotImplementedError


class Workers:
    """The processes of one lowering.

    ``executor``: None, threads, or an executor of other processes. ``isolated``: a
    process compiles one partition, and may crash. ``time_limit`` (seconds) and
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
        has_threads = executor is None or isinstance(executor, ThreadPoolExecutor)
        self._process_executor = None if has_threads else executor
        self._python = python
        self._limits = Limits(time_limit, memory_limit)
        self._isolated = has_threads or isolated or self._limits != Limits()
        # its threads run ``preprocess`` of stand-ins, and wait for workers
        self.executor: Executor | None = executor
        if not has_threads:
            self.executor = ThreadPoolExecutor(_WAITING, "delegraph-waiting")
        # If an executor breaks, workers of this machine replace its workers: at most as
        # many as the executor had.
        self._replacements = threading.BoundedSemaphore(
            max(_size_of(self._process_executor), 1)
        )
        self.path = private_folder()
        self._constants = Folder(self.path)
        self._idle: list[WorkerProcess] = []
        self._all: list[WorkerProcess] = []
        self._lock = threading.Lock()
        # equal partitions -> message and hint of the refusal
        self._refused: dict[Any, tuple[str, str | None]] = {}

    def prepare(self, backends: Sequence[str]) -> None:
        """Start workers, which import these backends in the background.

        Backends of this distribution start their own processes.
        """
        if backends and all(name.startswith("delegraph-workers/") for name in backends):
            return
        if self._process_executor is not None:
            # an executor of unknown size is not prepared: it may start a process for
            # each call. The jobs of a broken executor run in workers of this machine.
            with contextlib.suppress(BrokenExecutor):
                for _ in range(_size_of(self._process_executor)):
                    self._submit(warm, tuple(backends))
            return
        for _ in range(1 if self.executor is None else _size_of(self.executor)):
            self._idle.append(self._start())
            self._idle[-1].prepare(backends)

    def close(self) -> None:
        """End all processes that this object started; executors continue."""
        if self._process_executor is not None and self.executor is not None:
            self.executor.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            workers = self._all
            self._all = []
            self._idle = []
        for worker in workers:
            worker.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def forget(self) -> None:
        """Forget refused partitions: the next lowering may succeed with them."""
        self._refused.clear()

    def stand_in(
        self, backend: type[BackendDetails], name: str, producer: tuple[str, str]
    ) -> type[BackendDetails]:
        """Return a class that compiles like ``backend``, but in a worker.

        ``name`` is ``distribution/name``. Raises OptionError for a backend that only
        this process has.
        """
        if issubclass(backend, Remote):
            if self._limits != Limits():
                backend = backend.limited(self._limits)
            if self._process_executor is None:
                return backend
            return self._limit_processes(backend)
        if producer[0] == IN_PROCESS:
            raise OptionError(
                "option-invalid",
                f"backend {backend.__name__} was registered in this process, and no"
                " other process can find it",
                hint="install a distribution that declares it, or compile in this"
                " process: without isolation, limits and processes",
            )

        class_name = backend.__name__
        versions = versions_of(producer[0])

        def preprocess(
            edge_program: ExportedProgram, compile_specs: list[CompileSpec]
        ) -> PreprocessResult:
            programs = {"": [edge_program]}
            specs = {"": [compile_specs]}
            [result] = self.compile(class_name, name, versions, programs, specs)[""]
            return result

        def preprocess_multimethod(
            cls: type, edge_programs: Programs, compile_specs: Specs
        ) -> dict[str, list[PreprocessResult]]:
            return self.compile(
                class_name, name, versions, edge_programs, compile_specs
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
        own = getattr(backend.preprocess_multimethod, "__func__", None)
        if own is not default.__func__:
            body["preprocess_multimethod"] = classmethod(preprocess_multimethod)
        return type(class_name, (BackendDetails,), body)

    def _limit_processes(self, backend: type[BackendDetails]) -> type[BackendDetails]:
        """Return a class like ``backend`` that compiles a few partitions at a time.

        ``backend`` starts its own processes. Without the limit, each thread that waits
        for the executor would start one.
        """

        def preprocess(
            edge_program: ExportedProgram, compile_specs: list[CompileSpec]
        ) -> PreprocessResult:
            with self._replacements:
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
        ``distribution/name``. The worker must have the same ``versions`` of
        distributions. A program without a form is compiled in this process, unless
        isolation is required.
        """
        limits = limits or self._limits
        forms: list[Form] = []
        rows: list[Any] = []
        nodes: dict[str, Any] = {}
        try:
            for method, listed in programs.items():
                for program, given in zip(listed, specs[method], strict=True):
                    forms.append(write(program))
                    rows.append([method, [[s.key, s.value.hex()] for s in given]])
                    for node in all_nodes(program.graph_module):
                        nodes[node.name] = node
        except Unsupported:
            if self._isolated:
                raise
            # a program cannot be sent
            copies = {m: [list(given) for given in specs[m]] for m in specs}
            with TRACING:
                return get_backend(name).preprocess_multimethod(programs, copies)
        header: dict[str, Any] = {
            "backend": name,
            "class": backend,
            "versions": dict(versions),
            "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "programs": rows,
            "isolated": self._isolated,
            "time_limit": limits.seconds,
            "memory_limit": limits.memory,
        }
        # a partition that ended a worker would end it again
        key = name, limits, repr(rows), tuple(form.key for form in forms)
        if key in self._refused:
            message, hint = self._refused[key]
            raise Unsupported("unsupported", message, hint=hint)
        try:
            answer = self.send(header, forms, _describe(backend, programs), limits)
            results = iter(self._results(answer, forms, nodes, limits))
        except Unsupported as refusal:
            if refusal.node is None:
                # without the error itself: its traceback would keep the program
                self._refused[key] = refusal.message, refusal.hint
            raise
        return {
            method: [next(results) for _ in listed]
            for method, listed in programs.items()
        }

    def send(
        self,
        header: dict[str, Any],
        forms: Sequence[Form],
        partitions: str,
        limits: Limits | None = None,
    ) -> tuple[bytes, str]:
        """Return the answer to a job about programs, and the printed text.

        ``partitions`` names the partitions in the log.
        """
        limits = limits or self._limits
        packed, memories = self.lay_out(forms)
        job = pack({**header, "inline": [], "folder": str(self.path)}, packed)
        if self._process_executor is None:
            return self._in_process(job, partitions, limits)

        def pack_with_constants() -> bytes:
            constants = [b"".join(memory.pieces()) for memory in memories.values()]
            digests = [digest.hex() for digest in memories]
            complete = {**header, "inline": digests, "folder": None}
            return pack(complete, [*packed, *constants])

        return self._in_executor(job, pack_with_constants, partitions, limits)

    def lay_out(self, forms: Sequence[Form]) -> tuple[list[bytes], dict[bytes, Memory]]:
        """Write large constants of programs into the folder.

        Returns the bytes of the programs, and the large constants by digest.
        """
        memories: dict[bytes, Memory] = {}
        for form in forms:
            for memory in form.memories:
                if memory.size >= INLINE:
                    memories[memory.digest] = memory
        for memory in memories.values():
            self._constants.add(memory)
        return [b"".join(form.pieces()) for form in forms], memories

    def _in_process(
        self, job: bytes, partitions: str, limits: Limits
    ) -> tuple[bytes, str]:
        """Let a process of this machine do a job; return answer and printed text.

        If the process ends, a later job starts another one.
        """
        worker = self._take_worker()
        LOG.info("%s, in process %d", partitions, worker.pid)
        try:
            return worker.run(job, limits)
        finally:
            self._return_worker(worker, limits.memory)

    def _in_executor(
        self,
        job: bytes,
        pack_with_constants: Callable[[], bytes],
        partitions: str,
        limits: Limits,
    ) -> tuple[bytes, str]:
        """Let the executor do a job; return the answer and the printed text.

        ``job`` has the paths of large constants. If the machine of the executor's
        worker cannot read them, ``pack_with_constants()`` is sent instead: the same job
        with the constants. If the executor breaks, a worker of this machine does the
        job.
        """
        try:
            answer = self._run_with_retry(job, partitions)
            header, parts = _unpacked(answer)
            inner = header
            if "wrapped" in header:
                inner, _ = _unpacked(bytes(parts[0]))
            if "absent" in inner:
                answer = self._run_with_retry(pack_with_constants(), partitions)
                header, parts = _unpacked(answer)
        except BrokenExecutor:
            LOG.info(
                "%s, again in a process of this machine: executor broke", partitions
            )
            with self._replacements:
                return self._in_process(job, partitions, limits)
        if "wrapped" in header:
            return bytes(parts[0]), str(header.get("output", ""))
        if "pid" in header:
            LOG.info(
                "%s, compiled by process %s of %s",
                partitions,
                header["pid"],
                header.get("host"),
            )
        return bytes(answer), ""

    def _run_with_retry(self, job: bytes, partitions: str) -> Any:
        """Let a worker of the executor run a job, and return the worker's answer.

        If the worker dies, a second one runs the job. If that dies too, raises
        Unsupported. Raises BrokenExecutor if the executor accepts no more jobs.
        """
        for attempt in (1, 2):
            try:
                return self._submit(run, job).result()
            except (BrokenExecutor, DelegraphError):
                raise
            except Exception as failure:
                failure_name = type(failure).__name__
                if attempt == 2:
                    raise Unsupported(
                        "unsupported",
                        f"the executor failed twice while it compiled: {failure_name}:"
                        f" {failure}",
                    ) from failure
                LOG.info("%s, again: %s", partitions, failure_name)
        raise AssertionError("the second attempt returns or raises")

    def _submit(self, function: Callable[[Any], Any], given: Any) -> Any:
        """Return the executor's future of a call.

        Raises OptionError if it was shut down.
        """
        executor: Any = self._process_executor
        try:
            return executor.submit(function, given)
        except BrokenExecutor:
            raise
        except Exception as e:
            raise OptionError(
                "option-invalid",
                f"the {type(executor).__name__} accepts no calls: {type(e).__name__}:"
                f" {e}",
                hint="pass an executor that is not shut down, or none",
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
        self, content: Any, nodes: Mapping[str, Any], limits: Limits
    ) -> BaseException:
        """Return the error that a worker wrote (``failures``).

        If the worker is isolated, an exit or too little memory becomes Unsupported.
        """
        try:
            error = read_error(content, nodes)
        except (KeyError, TypeError) as e:
            return FormatError(
                "format-invalid",
                f"the error of a worker process cannot be read: {e!r}",
            )
        if not self._isolated:
            return error
        if isinstance(error, SystemExit):
            return Unsupported("unsupported", f"its compiler exited: {error}")
        text = str(error) or "MemoryError"
        if limits.memory is not None and (
            isinstance(error, MemoryError) or "can't allocate memory" in text
        ):
            return Unsupported(
                "unsupported",
                f"it needs more than {limits.memory / 1e6:.0f} MB of memory: {text}",
                hint="allow more with memory_limit",
            )
        return error

    def _take_worker(self) -> WorkerProcess:
        """Return an idle worker, or a new one if there is none."""
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.alive:
                    return worker
        return self._start()

    def _start(self) -> WorkerProcess:
        """Start a worker on this machine, which ``close`` will end."""
        worker = WorkerProcess(self.path, self._python)
        with self._lock:
            self._all.append(worker)
        return worker

    def _return_worker(self, worker: WorkerProcess, limit: int | None) -> None:
        """Keep a worker for the next job, unless it ended or keeps too much memory.

        ``limit``: the memory limit of a partition. A worker that keeps more than half of
        it could fail at a partition that a new worker compiles.
        """
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
        raise FormatError(
            "format-invalid",
            f"the executor returned {type(answer).__name__} for a job, not bytes",
        )
    return unpack(answer)


def _describe(backend: str, programs: Programs) -> str:
    """Return the names of the partitions and of their backend, for the log."""
    places = []
    for program in itertools.chain(*programs.values()):
        meta = program.graph_module.meta
        default = f"{meta.get('partition')} of {meta.get('method')}"
        places.append(meta.get("local:place", default))
    return ", ".join([*places, backend])


def check_no_fork(executor: Any) -> None:
    """Raise OptionError for forked processes: after torch has used threads, it fails in
    forks.
    """
    context = getattr(executor, "_mp_context", None)
    if context is None or not hasattr(context, "get_start_method"):
        return
    if context.get_start_method() == "fork":
        raise OptionError(
            "option-invalid",
            f"this {type(executor).__name__} forks its processes, and torch does not"
            " work reliably in forks",
            hint="pass ProcessPoolExecutor(2,"
            " mp_context=multiprocessing.get_context('spawn'))",
        )
