"""The compiler of a lowering to which the user gives none."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from torch.export import ExportedProgram

from ..discovery.registry import Registry
from ..partitioner import Partitioner, PartitionResult
from .compile import compile_here
from .session import Compiled, Request, Session

CACHE_VARIABLES = ("DELEGRAPH_CACHE", "DELEGRAPH_CACHE_REMOTE")
"""Environment variables with which the user asks for a cache of compiled partitions."""


class Serial:
    """The compiler that compiles in this process, one partition after the other.

    If a backend declares to be isolated, the installed compiler that is declared as the
    default gets all partitions and all calls of partitioners from then on.
    """

    def session(self, registry: Registry, backends: Sequence[str]) -> Session:
        """A new session, which only calls the default compiler if it has to."""
        return _SerialSession(registry, backends)


class _SerialSession:
    """The session of ``Serial``.

    ``_default``: the session of the default compiler; None until it is needed.
    """

    def __init__(self, registry: Registry, backends: Sequence[str]) -> None:
        self._registry = registry
        self._backends = backends
        self._default: Session | None = None
        self._open = ExitStack()

    @property
    def notes(self) -> Sequence[str]:
        return self._default.notes if self._default is not None else ()

    def __enter__(self) -> _SerialSession:
        """Start the default compiler now if a backend is isolated: that takes time."""
        if any(self._registry.spec(name).isolated for name in self._backends):
            self._begin_default()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._open.__exit__(*raised)

    def partition(
        self, partitioner: Partitioner, program: ExportedProgram
    ) -> PartitionResult:
        if self._default is not None:
            return self._default.partition(partitioner, program)
        with self._registry.attributing(partitioner, "partition"):
            return partitioner(program)

    def compile(self, requests: Sequence[Request]) -> Sequence[Compiled]:
        if self._default is None:
            if not any(request.backend.spec.isolated for request in requests):
                return compile_here(requests)
            self._begin_default()
        assert self._default is not None
        return self._default.compile(requests)

    def _begin_default(self) -> None:
        """Begin a session of the default compiler. Raises PluginUnavailable."""
        compiler = self._registry.default_compiler("compiling in other processes")
        session: Session = compiler.session(self._registry, self._backends)
        self._open.enter_context(session)
        self._default = session
