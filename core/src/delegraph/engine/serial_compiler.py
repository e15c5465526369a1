"""Calls the compilers of backends one after the other, and checks their results."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

from delegraph_programs import TRACING, all_nodes, source_of
from delegraph_programs.program_snapshot import Snapshot
from torch.export import ExportedProgram
from torch.fx import Node

from ..backend import BackendDetails, CompileSpec, check_called_on_class
from ..discovery.plugin_call import PluginCall
from ..discovery.records import InstalledBackend
from ..discovery.registry import Registry
from ..errors import ContractViolation, DelegraphError, Unsupported
from ..partitioner import Partitioner, PartitionResult
from .compiler_interface import Compiled, Refused, Request, Session
from .contract_checks import (
    allowed_handles,
    check_result,
    check_shared,
    check_untouched,
    flat_results,
)
from .failures_to_refusals import may_be_refusal

LOG = logging.getLogger("delegraph.progress")


def compile_here(
    requests: Sequence[Request], first: int = 1, total: int | None = None
) -> list[Compiled]:
    """Compile partitions in this process, one after the other.

    Backends are called in the order of their first requests (``calls_of``). A backend
    that is not thread-safe is called while no other thread lowers. The results are
    checked, and so are the parts of a program that a backend must not change.

    If a backend raises Unsupported, the requests that the error is about are refused.
    The backend is called again with the other requests of the call. If a backend raises
    another exception, each program of the call is compiled alone, and programs that
    fail again are refused.

    The log ``delegraph.progress`` numbers the requests from ``first`` to ``total``.
    ``total`` None: the number of ``requests``.

    Raises ContractViolation for wrong results and for forbidden changes. Raises an
    exception of a backend that cannot count as a refusal (``may_be_refusal``).
    """
    answers: dict[int, Compiled] = {}  # position of a request -> its answer
    total = len(requests) if total is None else total
    for positions in calls_of(requests):
        last = first + len(positions) - 1
        name = requests[positions[0]].backend.spec.name
        if first == last:
            LOG.info("partition %d of %d, %s", first, total, name)
        else:
            LOG.info("partitions %d to %d of %d, %s", first, last, total, name)
        first = last + 1
        call = [_Job(requests[k]) for k in positions]
        _compile(call)
        for position, job in zip(positions, call, strict=True):
            answers[position] = Compiled(job.result, seconds=job.seconds)
    return [answers[k] for k in range(len(requests))]


def calls_of(requests: Sequence[Request]) -> list[list[int]]:
    """Return the calls of backends, each as a list of positions in ``requests``.

    A backend that compiles jointly is called once, with all of its requests. Any other
    backend is called once for each of its requests. All calls of one backend follow
    each other. Backends come in the order of their first requests.
    """
    # class of a backend -> the positions of its requests
    by_backend: dict[type[BackendDetails], list[int]] = {}
    for position, request in enumerate(requests):
        by_backend.setdefault(request.backend.kind, []).append(position)
    calls: list[list[int]] = []
    for kind, positions in by_backend.items():
        if compiles_jointly(kind):
            calls.append(positions)
        else:
            calls.extend([position] for position in positions)
    return calls


def compiles_jointly(kind: type[BackendDetails]) -> bool:
    """Return whether a backend compiles the partitions of all methods in one call.

    It does so if the class ``kind`` overrides ``preprocess_multimethod``. The default
    of that method compiles one partition after the other.
    """
    default: Any = BackendDetails.preprocess_multimethod
    # class methods: ``__func__`` is the function without the class that it is read from
    return (
        getattr(kind.preprocess_multimethod, "__func__", None) is not default.__func__
    )


class _Job:
    """A request, the program that the backend gets for it, and the result.

    ``before``: a snapshot of the program. ``handles``: the debug handles that the
    result may name. ``result``: None, then the backend's result or a ``Refused``.
    ``seconds``: the share of this request in the time of its last successful call.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.result: Any = None
        self.seconds = 0.0
        self.extract()

    def extract(self) -> None:
        """Get a fresh program; a failed call may have rewritten the last one."""
        self.program = self.request.extract()
        self.before = Snapshot(self.program)
        self.handles = allowed_handles(self.program)


def _compile(call: Sequence[_Job]) -> None:
    """Call a backend with the programs of ``call``, and store the ``result`` of each.

    All requests of ``call`` have the same backend. If the backend refuses some of them,
    the others are compiled again. Raises the backend's error if it is no refusal.
    """
    backend = call[0].request.backend
    name = backend.kind.__name__
    programs: dict[str, list[ExportedProgram]] = {}
    specs: dict[str, list[list[CompileSpec]]] = {}
    for job in call:
        method = job.request.method
        programs.setdefault(method, []).append(job.program)
        specs.setdefault(method, []).append(list(job.request.compile_specs))
    # The backend gets the programs by method, and its results come in the same order.
    methods = list(programs)
    in_order = sorted(call, key=lambda job: methods.index(job.request.method))
    try:
        returned = _call_backend(backend, in_order, programs, specs)
    except DelegraphError as error:
        is_refusal = isinstance(error, Unsupported) or may_be_refusal(error)
        if not is_refusal:
            raise
        # the next calls need the weights and subgraphs that this call may have changed
        for job in call:
            check_shared(name, job.request.tag, job.before)
        _compile_again(call, error)
        return
    results = flat_results(name, programs, returned)
    for job, result in zip(in_order, results, strict=True):
        request = job.request
        check_result(name, request.tag, job.handles, result)
        check_untouched(name, request.tag, job.program, job.before, request.extract)
        job.result = result


def _call_backend(
    backend: InstalledBackend,
    call: Sequence[_Job],
    programs: Mapping[str, Sequence[ExportedProgram]],
    specs: Mapping[str, Sequence[list[CompileSpec]]],
) -> Any:
    """Call ``preprocess_multimethod`` and return the unchecked results by method.

    No other function calls compilers of backends. ``call``: the requests in the order
    of ``programs``. Sets their ``seconds`` to equal shares of the call's time.
    """
    places = ", ".join(job.request.place for job in call)
    nodes: list[Node] = []  # an error shows the line of the first
    for job in call:
        nodes += job.program.graph.nodes
    # the lock TRACING keeps other threads from lowering
    with nullcontext() if backend.kind.thread_safe else TRACING:
        start = time.perf_counter()
        with PluginCall(backend.kind, "preprocess", places, nodes, backend):
            returned = backend.kind.preprocess_multimethod(programs, specs)
        seconds = (time.perf_counter() - start) / len(call)
    for job in call:
        job.seconds = seconds
    return returned


def _compile_again(call: Sequence[_Job], error: DelegraphError) -> None:
    """Refuse the requests that ``error`` is about, and compile the other requests.

    ``error``: Unsupported, or an exception of the backend that may be a refusal.
    """
    if isinstance(error, Unsupported):
        refused = _concerned(call, error)
        others = [job for job in call if job not in refused]
        next_calls = [others] if others else []
    elif len(call) > 1:
        # any of the requests may have caused the exception: compile each alone
        refused = []
        next_calls = [[job] for job in call]
    else:
        refused = call
        next_calls = []
    for job in refused:
        job.result = Refused(error)
    for next_call in next_calls:
        for job in next_call:
            job.extract()
        _compile(next_call)


def _concerned(call: Sequence[_Job], refusal: Unsupported) -> Sequence[_Job]:
    """Return the requests of ``call`` that ``refusal`` is about.

    If the refusal names a node, return the requests with this node. If it names none,
    or no request has the node, return all of ``call``. Sets the source of the refusal
    to that of the node, if it has none.
    """
    node = refusal.node
    if not isinstance(node, Node):
        return call
    refusal.source = refusal.source or source_of(node)
    with_node = [job for job in call if node in all_nodes(job.program.graph_module)]
    return with_node or call


def fingerprint_of(
    backend: InstalledBackend, compile_specs: Sequence[CompileSpec]
) -> str | None:
    """Return the backend's fingerprint for ``compile_specs``; None if it has none.

    Raises ContractViolation if the backend returns anything but a text or None.
    """
    kind = backend.kind
    # raises ContractViolation, for example if @staticmethod is missing
    check_called_on_class(kind, "fingerprint", ("compile_specs",))
    with PluginCall(kind, "fingerprint", registry=backend):
        fingerprint = kind.fingerprint(list(compile_specs))
    if not isinstance(fingerprint, str | None):
        text = (
            f"{kind.__name__}.fingerprint returned {fingerprint!r:.80}, not a text or"
            " None"
        )
        raise ContractViolation("contract-violation", text)
    return fingerprint


CACHE_VARIABLES = ("DELEGRAPH_CACHE", "DELEGRAPH_CACHE_REMOTE")
"""Environment variables with which the user asks for a cache of compiled partitions."""


class Serial:
    """The compiler that compiles in this process, one partition after the other.

    A backend that is declared as isolated must not be called in this process. Once a
    lowering needs one, the session passes all partitions and all calls of partitioners
    to the installed default compiler.
    """

    def session(self, registry: Registry, backends: Sequence[str]) -> Session:
        """Return a new session; ``backends``: names of its backends, if known."""
        return _SerialSession(registry, backends)


class _SerialSession:
    """A session that compiles in this process until a lowering needs an isolated backend.

    From then on, it passes all calls to ``_default``, the session of the installed
    default compiler. Before, ``_default`` is None.
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
        """Start the default compiler if a backend is isolated, and return the session.

        ``compile`` starts it too, for backends that the caller did not name.
        """
        if any(self._registry.spec(name).traits.isolated for name in self._backends):
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
            if not any(request.backend.spec.traits.isolated for request in requests):
                return compile_here(requests)
            self._begin_default()
        assert self._default is not None
        return self._default.compile(requests)

    def _begin_default(self) -> None:
        """Begin a session of the default compiler.

        Raises PluginUnavailable if none is installed, and PluginConflict if several
        compilers are the default.
        """
        # the argument names the purpose in the error, if no compiler is installed
        compiler = self._registry.default_compiler("compiling in other processes")
        session: Session = compiler.session(self._registry, self._backends)
        self._open.enter_context(session)
        self._default = session
