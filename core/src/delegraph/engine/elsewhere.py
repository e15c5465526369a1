"""Chooses where the partitions of one lowering are compiled: in this process, or in others if the user asks for that.

``delegraph-workers`` runs the processes; it is looked up when it is needed. It makes a stand-in for a backend's class,
which sends each partition to a process and returns the result. To the rest of a lowering, a stand-in is a thread-safe
backend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..backend import BackendDetails
from ..discovery.own import provided
from ..discovery.registry import Registry
from ..errors import OptionError


class Elsewhere:
    """Provides the class that compiles for each backend: its own class, or a stand-in that uses other processes.

    ``executor`` makes the calls: threads, or what the workers make of another kind of executor; None for the calling
    thread. ``isolation`` is "process" or None; a limit implies isolation. ``time_limit`` (seconds) and ``memory_limit``
    (bytes) are for one partition; None is no limit. Raises OptionError for other values.

    It is a context manager; the end of the outermost block ends the processes. ``_of_all``: every backend compiles in
    other processes, not just those that declare to be isolated.
    """

    def __init__(
        self,
        registry: Registry,
        executor: Any = None,
        isolation: str | None = None,
        time_limit: float | None = None,
        memory_limit: int | None = None,
    ) -> None:
        """Check the user's choices, which the class describes; no process is started yet."""
        if isolation not in (None, "process"):
            raise OptionError("option-invalid", f"isolation is 'process' or None, not {isolation!r}")
        for name, limit in (("time_limit", time_limit), ("memory_limit", memory_limit)):
            if limit is not None and (
                isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit < math.inf
            ):
                raise OptionError("option-invalid", f"{name} is a finite number above 0, not {limit!r}")
        self._registry, self.executor = registry, executor
        self._given = executor, isolation is not None, time_limit, memory_limit  # the arguments of ``Workers``
        # foreign: an object that takes calls, and is not known to run them in threads of this process
        is_foreign = not isinstance(executor, type) and callable(getattr(executor, "submit", None))
        # every backend compiles elsewhere if the user asks for isolation or a limit, or gives a foreign executor
        self._of_all = any(v not in (None, False) for v in self._given[1:])
        self._of_all |= is_foreign and not isinstance(executor, ThreadPoolExecutor)
        self._workers: Any = None
        self._stand_ins: dict[str, type[BackendDetails]] = {}  # full name of a backend -> its stand-in
        self._blocks = 0  # how many ``with`` blocks of this object are open

    def __enter__(self) -> Elsewhere:
        """Begin a block; blocks may be nested."""
        self._blocks += 1
        return self

    def __exit__(self, *_: object) -> None:
        """End a block; the end of the outermost one ends the processes."""
        self._blocks -= 1
        if self._workers is not None and not self._blocks:
            self._workers.close()
            self._workers = None

    def begin(self, names: Iterable[str]) -> None:
        """Start processes for those of the backends ``names`` that compile in other processes.

        The processes load the backends while this one still exports the program.
        """
        # all of them, or those that declare to be isolated
        entries = [name for name in names if self._of_all or self._registry.spec(name).isolated]
        if entries or self._of_all:
            self._begun().prepare([self._registry.full_name(name) for name in entries])

    def open(self) -> tuple[Any, Any]:
        """A registry that gives, for each backend, the class that compiles; and the executor that calls the classes."""
        if self._of_all:
            self._begun()
        return _WithStandIns(self._registry, self._backend), self.executor

    def _backend(self, name: str) -> type[BackendDetails]:
        """The backend's class, or its stand-in if it compiles elsewhere. Raises as ``Registry.get_backend`` does."""
        backend = self._registry.get_backend(name)
        if not (self._of_all or self._registry.spec(name).isolated):
            return backend
        full_name = self._registry.full_name(name)
        if full_name not in self._stand_ins:
            made = self._begun().stand_in(backend, full_name, self._registry.producer(name))
            self._stand_ins[full_name] = made
        return self._stand_ins[full_name]

    def _begun(self) -> Any:
        """The workers, started when first needed. Raises PluginUnavailable without ``delegraph-workers``."""
        if self._workers is None:
            what = "compiling in other processes (isolation, limits, executors that are no threads)"
            self._workers = provided("delegraph_workers:Workers", what)(*self._given)
            self.executor = self._workers.executor
        return self._workers


class _WithStandIns:
    """A registry with another ``get_backend``; everything else is that of the given one."""

    def __init__(self, registry: Registry, get_backend: Callable[[str], type[BackendDetails]]) -> None:
        self._registry, self.get_backend = registry, get_backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)
