"""Compile in threads, processes and on other machines, and cache results: ``Compiler``.

A session replaces the class of an isolated backend by a stand-in, which sends each
partition to a process and returns the result. For the rest of a lowering, a stand-in is
a thread-safe backend. ``compile_here`` of the core makes each call, in the thread that
lowers or in a thread of an executor.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from delegraph import Registry
from delegraph.compiler import (
    Compiled,
    InstalledBackend,
    Request,
    calls_of,
    compile_here,
)
from delegraph.errors import OptionError
from delegraph.partitioner import Partitioner, PartitionResult
from torch.export import ExportedProgram

from .answers import cached_answer
from .cache import Cache, choose_cache
from .cached_results import CachedResults, Entries
from .executors import Call, no_threads, run_calls
from .workers import LEAST_MEMORY, Workers, check_no_fork


class Compiler:
    """Compiles partitions for ``delegraph.lower(compiler=Compiler(...))``.

    ``cache``: a folder for compiled partitions, "" or True for the user's folder, or a
    ``Cache``. Cached partitions are not compiled again, and equal partitions are
    compiled once; the report shows the source of each delegate. None: the folder in the
    environment variable ``DELEGRAPH_CACHE``, if that is set; False: no cache.
    ``cache_remote``: the URL of a shared folder for this cache.

    ``executor``: a ``concurrent.futures`` executor that compiles partitions in
    parallel, to the same blobs. An executor of threads serves thread-safe backends
    only. One of processes or other machines serves all backends.

    ``isolation="process"``: compile each partition in another process. If it crashes,
    exits, or takes more than ``time_limit`` seconds or ``memory_limit`` bytes, the
    partition goes to the next backend or to the host. A limit implies isolation.

    Raises OptionError for other values.
    """

    def __init__(
        self,
        cache: bool | str | os.PathLike[str] | Cache | None = None,
        executor: Any = None,
        isolation: str | None = None,
        time_limit: float | None = None,
        memory_limit: float | None = None,
        cache_remote: str | None = None,
    ) -> None:
        """Check the arguments; start no process."""
        if isolation not in (None, "process"):
            text = f"isolation is 'process' or None, not {isolation!r}"
            raise OptionError("option-invalid", text)
        _check_limit("time_limit", time_limit)
        _check_limit("memory_limit", memory_limit)
        if memory_limit is not None and memory_limit < LEAST_MEMORY:
            raise OptionError(
                "option-invalid",
                f"memory_limit is {memory_limit:,} bytes, but a worker itself uses up"
                f" to {LEAST_MEMORY:,}",
                hint=f"pass memory_limit={LEAST_MEMORY} or more, on the command line"
                " --memory-limit 32 (in MB)",
            )
        self.cache = choose_cache(cache, cache_remote)
        self.executor = executor
        self.isolation = isolation
        self.time_limit = time_limit
        self.memory_limit = memory_limit
        # a foreign executor may run calls in other processes
        is_foreign = not isinstance(executor, ThreadPoolExecutor | None)
        if is_foreign:
            takes_calls = callable(getattr(executor, "submit", None))
            if isinstance(executor, type) or not takes_calls:
                raise no_threads(executor)
            check_no_fork(executor)
        limits = isolation, time_limit, memory_limit
        self.isolates_all = is_foreign or any(value is not None for value in limits)
        """Whether all backends compile in other processes, and not just those that
        declare to be isolated."""

    def session(self, registry: Registry, backends: Sequence[str]) -> Session:
        """Return a new session, with new processes."""
        return Session(self, registry, backends)


def _check_limit(name: str, limit: Any) -> None:
    """Raise OptionError unless ``limit`` is None or a finite number above 0."""
    if limit is None:
        return
    is_number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
    if not is_number or not 0 < limit < math.inf:
        text = f"{name} is a finite number above 0, not {limit!r}"
        raise OptionError("option-invalid", text)


def _compile_group(
    requests: Sequence[Request],
    positions: Sequence[int],
    results: CachedResults | None,
    first: int,
    total: int,
) -> list[Compiled]:
    """Compile the requests at ``positions`` in one call of their backend."""
    if results is None:
        return compile_here([requests[k] for k in positions], first, total)
    if len(positions) == 1:
        return [results.compile(positions[0], first, total)]
    # results of a joint call are not cached
    compiled = compile_here([requests[k] for k in positions], first, total)
    return [one._replace(origin="compiled") for one in compiled]


class Session:
    """A lowering with a ``Compiler``.

    ``_workers``: the processes; None until one is needed.
    """

    def __init__(
        self, compiler: Compiler, registry: Registry, backends: Sequence[str]
    ) -> None:
        self._compiler = compiler
        self._registry = registry
        self._backends = backends
        self._executor = compiler.executor
        cache = compiler.cache
        self._entries = Entries(cache) if cache is not None else None
        self._workers: Workers | None = None
        self._stand_ins: dict[str, InstalledBackend] = {}  # by full name

    @property
    def notes(self) -> Sequence[str]:
        """Return the numbers of found and stored results, and faults of the cache."""
        return self._entries.notes if self._entries is not None else ()

    def __enter__(self) -> Session:
        """Start processes, which load the backends while this one exports."""
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def partition(
        self, partitioner: Partitioner, program: ExportedProgram
    ) -> PartitionResult:
        """Return the answer of ``partitioner``, or an earlier one from the cache.

        The cache keeps it if the partitioner has a ``fingerprint``.
        """

        def ask() -> PartitionResult:
            with self._registry.attributing(partitioner, "partition"):
                return partitioner(program)

        if self._entries is None:
            return ask()
        with self._registry.attributing(partitioner, "fingerprint"):
            fingerprint = partitioner.fingerprint(program)
        if fingerprint is None:
            return ask()
        return cached_answer(program, partitioner, fingerprint, self._entries, ask)

    def compile(self, requests: Sequence[Request]) -> list[Compiled]:
        """Take results from the cache, and compile the other partitions."""
        sent = [self._with_stand_in(request) for request in requests]
        if self._entries is None:
            positions = list(range(len(sent)))
            answers = self._compile(sent, positions, None)
            return [answers[k] for k in positions]
        results = CachedResults(self._entries, sent)
        results.answers |= self._compile(sent, results.look_up(), results)
        return results.complete()

    def _compile(
        self,
        requests: Sequence[Request],
        positions: Sequence[int],
        results: CachedResults | None,
    ) -> dict[int, Compiled]:
        """Compile the requests at ``positions``; return answers by position.

        ``results`` adds them to the cache; it is None without a cache.
        """
        groups = calls_of([requests[k] for k in positions])
        total = len(positions)
        first = 1
        calls: list[Call[list[Compiled]]] = []
        for group in groups:
            listed = [positions[k] for k in group]
            call = partial(_compile_group, requests, listed, results, first, total)
            is_safe = requests[listed[0]].backend.kind.thread_safe
            calls.append(Call(call, is_safe))
            first += len(group)
        answers: dict[int, Compiled] = {}
        for group, made in zip(groups, run_calls(calls, self._executor), strict=True):
            answers |= {positions[k]: one for k, one in zip(group, made, strict=True)}
        return answers

    def _prepare(self) -> None:
        """Start the processes that the backends of the lowering need."""
        isolated = self._backends
        if not self._compiler.isolates_all:
            isolated = [n for n in isolated if self._registry.spec(n).traits.isolated]
        if isolated:
            names = [self._registry.entry(name).full_name for name in isolated]
            self._started_workers().prepare(names)

    def _with_stand_in(self, request: Request) -> Request:
        """Return ``request``, with a stand-in for a backend that compiles elsewhere."""
        backend = request.backend
        if not self._compiler.isolates_all and not backend.spec.traits.isolated:
            return request
        if backend.full_name not in self._stand_ins:
            made = self._started_workers().stand_in(
                backend.kind, backend.full_name, backend.producer
            )
            self._stand_ins[backend.full_name] = replace(backend, kind=made)
        return request._replace(backend=self._stand_ins[backend.full_name])

    def _started_workers(self) -> Workers:
        """Return the processes, which start at the first use."""
        if self._workers is None:
            chosen = self._compiler
            memory = chosen.memory_limit
            self._workers = Workers(
                chosen.executor,
                chosen.isolation is not None,
                chosen.time_limit,
                None if memory is None else int(memory),
            )
            self._executor = self._workers.executor
        return self._workers


def from_flags(memory_limit: float | None = None, **options: Any) -> Compiler:
    """Return the compiler for flags of the command line; ``memory_limit`` is in MB."""
    memory = None if memory_limit is None else memory_limit * 1e6
    return Compiler(memory_limit=memory, **options)
