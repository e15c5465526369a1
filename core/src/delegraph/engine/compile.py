"""Calls the compilers of backends, one after the other, and checks their results and
their effects.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from delegraph_programs import TRACING, all_nodes, source_of
from torch.export import ExportedProgram
from torch.fx import Node

from ..backend import BackendDetails, CompileSpec
from ..discovery.attribution import AtWork
from ..discovery.registry import InstalledBackend
from ..errors import DelegraphError, Unsupported
from .failures import may_be_refusal
from .returned import (
    check_others,
    check_result,
    check_untouched,
    flat_results,
    handles_of,
)
from .session import Compiled, Refused, Request
from .snapshot import Snapshot

LOG = logging.getLogger("delegraph.progress")


def compile_here(
    requests: Sequence[Request], first: int = 1, total: int | None = None
) -> list[Compiled]:
    """Compile partitions in this process, one after the other.

    Backends are called in the order of their first requests (``calls_of``). A backend
    that is not thread-safe is called while no other thread lowers. The results are
    checked, and so is what a backend may not change in its program.

    If a backend raises Unsupported, the requests that the error is about are refused,
    and the backend is called again with the others. If it raises an exception of its
    own, each program is compiled alone. Programs that fail again are refused.

    ``first`` and ``total`` are for the log ``delegraph.progress``: the number of the
    first request, and how many requests there are.

    Raises ContractViolation for wrong results and for forbidden changes.
    """
    answers: dict[int, Compiled] = {}
    total = len(requests) if total is None else total
    for positions in calls_of(requests):
        last = first + len(positions) - 1
        name = requests[positions[0]].backend.spec.name
        if first == last:
            LOG.info("partition %d of %d, %s", first, total, name)
        else:
            LOG.info("partitions %d to %d of %d, %s", first, last, total, name)
        first = last + 1
        call = [_Given(requests[k]) for k in positions]
        _compile(call)
        for position, given in zip(positions, call, strict=True):
            answers[position] = Compiled(given.result, seconds=given.seconds)
    return [answers[k] for k in range(len(requests))]


def calls_of(requests: Sequence[Request]) -> list[list[int]]:
    """The calls of backends that ``requests`` need: for each one, their positions.

    Backends come in the order of their first requests. A backend that compiles jointly
    is called once, others are called once for each partition.
    """
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
    """Whether a backend compiles the partitions of all methods in one call.

    That is so if its class replaces ``preprocess_multimethod``, whose default compiles
    one partition after the other.
    """
    default: Any = BackendDetails.preprocess_multimethod
    return (
        getattr(kind.preprocess_multimethod, "__func__", None) is not default.__func__
    )


class _Given:
    """A request whose program is given to a backend.

    ``before``: a snapshot of the program. ``handles``: the debug handles that the
    result may name. ``result``: the answer, once there is one.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.result: Any = None
        self.seconds = 0.0
        self.extract()

    def extract(self) -> None:
        """Get a fresh program: a call that failed may have rewritten the last one."""
        self.program = self.request.extract()
        self.before = Snapshot(self.program)
        self.handles = handles_of(self.program)


def _compile(call: Sequence[_Given]) -> None:
    """Call a backend with the programs of ``call``; each of these gets its result."""
    backend = call[0].request.backend
    name = backend.kind.__name__
    by_method: dict[str, list[_Given]] = {}
    for given in call:
        by_method.setdefault(given.request.method, []).append(given)
    in_order = [given for same_method in by_method.values() for given in same_method]
    programs = {
        m: [given.program for given in same_method]
        for m, same_method in by_method.items()
    }
    specs = {
        m: [list(given.request.compile_specs) for given in same_method]
        for m, same_method in by_method.items()
    }
    try:
        returned = _call_backend(backend, in_order, programs, specs)
    except DelegraphError as error:
        if not isinstance(error, Unsupported) and not may_be_refusal(error):
            raise
        for given in call:
            check_others(name, given.request.tag, given.before)
        _compile_again(call, error)
        return
    results = flat_results(name, programs, returned)
    for given, result in zip(in_order, results, strict=True):
        request = given.request
        check_result(name, request.tag, given.handles, result)
        check_untouched(name, request.tag, given.program, given.before, request.extract)
        given.result = result


def _call_backend(
    backend: InstalledBackend,
    call: Sequence[_Given],
    programs: Mapping[str, Sequence[ExportedProgram]],
    specs: Mapping[str, Sequence[list[CompileSpec]]],
) -> Any:
    """Call ``preprocess_multimethod``, the only place where partitions are compiled.

    ``call``: the partitions in the order of ``programs``. Returns the results by
    method, unchecked.
    """
    places = ", ".join(given.request.place for given in call)
    nodes = [n for given in call for n in given.program.graph.nodes]
    with nullcontext() if backend.kind.thread_safe else TRACING:
        start = time.perf_counter()
        with AtWork(backend.kind, "preprocess", places, nodes, backend):
            returned = backend.kind.preprocess_multimethod(programs, specs)
        seconds = (time.perf_counter() - start) / len(call)
    for given in call:
        given.seconds = seconds
    return returned


def _compile_again(call: Sequence[_Given], error: DelegraphError) -> None:
    """Refuse the requests that ``error`` is about, and call the backend with others."""
    if isinstance(error, Unsupported):
        concerned = _concerned(call, error)
        others = [given for given in call if given not in concerned]
        calls = [others] if others else []
    elif len(call) > 1:
        concerned = []
        calls = [[given] for given in call]
    else:
        concerned = call
        calls = []
    for given in concerned:
        given.result = Refused(error)
    for again in calls:
        for given in again:
            given.extract()
        _compile(again)


def _concerned(call: Sequence[_Given], refusal: Unsupported) -> Sequence[_Given]:
    """The requests that a refusal is about; all if no program has its node."""
    node = refusal.node
    if not isinstance(node, Node):
        return call
    refusal.source = refusal.source or source_of(node)
    containing = [
        given
        for given in call
        if any(n is node for n in all_nodes(given.program.graph_module))
    ]
    return containing or call
