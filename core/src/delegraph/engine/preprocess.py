"""One call of a backend with the programs of one or several partitions; its results are checked."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from torch.export import ExportedProgram
from torch.fx import Node

from ..backend import BackendDetails, CompileSpec
from ..discovery.attribution import AtWork
from ..errors import DelegraphError, Unsupported
from ..exported.subgraphs import all_nodes
from ..exported.tracing import TRACING
from ..source import source_of
from .extract import extract
from .failures import HINT, log, may_be_refusal, text_of
from .partition import NotCompiled, Work
from .returned import check_others, check_result, check_untouched, flat_results, handles_of
from .snapshot import Snapshot

if TYPE_CHECKING:
    from ..discovery.registry import Registry


def preprocess(
    backend: type[BackendDetails],
    programs: Mapping[str, Sequence[ExportedProgram]],
    specs: Mapping[str, Sequence[list[CompileSpec]]],
    work: Sequence[Work],
    registry: Registry,
) -> tuple[Any, float]:
    """Call ``preprocess_multimethod`` of the backend, the only place where partitions are compiled.

    ``programs`` and ``specs``: programs and compile specs by method. ``work``: the partitions, for the texts of errors.
    Returns the result, unchecked, and the seconds for each partition: those of the call, divided by their number.
    """
    places = ", ".join(f"partition {w.partition.tag} of method {w.method}" for w in work)
    nodes = [n for w in work for n in w.partition.nodes]
    with nullcontext() if backend.thread_safe else TRACING:
        start = time.perf_counter()
        with AtWork(backend, "preprocess", places, nodes, registry):
            returned = backend.preprocess_multimethod(programs, specs)
        return returned, (time.perf_counter() - start) / len(work)


def compiles_jointly(backend: type[BackendDetails]) -> bool:
    """Whether the backend compiles the partitions of all methods in one call.

    That is so if its class replaces ``preprocess_multimethod``, whose default compiles one partition after the other.
    """
    default: Any = BackendDetails.preprocess_multimethod
    return getattr(backend.preprocess_multimethod, "__func__", None) is not default.__func__


def compile_work(backend: type[BackendDetails], work: Sequence[Work], registry: Registry, may_refuse: bool) -> None:
    """Call the backend with the programs of ``work``, check its effects and results, and store the results.

    If ``may_refuse`` and the backend raises Unsupported, the reason is stored in the work that it is about. The backend
    is then called again with the programs of the other work. If it raises an exception of its own, it is called with
    each program alone, and the exception is stored in the work on which it still fails. Raises ContractViolation for
    wrong results.
    """
    by_method: dict[str, list[Work]] = {}
    for item in work:
        by_method.setdefault(item.method, []).append(item)
    work = [item for items in by_method.values() for item in items]  # now in the order of methods
    before = [(Snapshot(w.program, w.plan.snapshot), handles_of(w.program)) for w in work]
    programs = {m: [w.program for w in items] for m, items in by_method.items()}
    specs: dict[str, Sequence[list[CompileSpec]]] = {
        m: [list(w.partition.spec.compile_specs) for w in items] for m, items in by_method.items()
    }
    try:
        returned, seconds = preprocess(backend, programs, specs, work, registry)
    except DelegraphError as error:
        if not may_refuse or not (isinstance(error, Unsupported) or may_be_refusal(error)):
            raise
        for item, (snapshot, _) in zip(work, before, strict=True):
            check_others(backend.__name__, item, snapshot)
        if isinstance(error, Unsupported):
            again = _note_refusal(work, error)
            calls = [again] if again else []
        else:
            calls = _note_failure(work, error)
        for items in calls:
            for item in items:  # the call that failed may have rewritten its programs
                item.program = extract(item.method, item.plan, item.partition)
                item.module.restore(item.program)
            compile_work(backend, items, registry, may_refuse)
        return
    results = flat_results(backend.__name__, programs, returned)
    for item, (snapshot, handles), result in zip(work, before, results, strict=True):
        check_result(backend.__name__, item.partition.tag, handles, result)
        check_untouched(backend.__name__, item, snapshot)
        item.result, item.seconds["compile"] = result, seconds


def _note_failure(work: Sequence[Work], failure: DelegraphError) -> list[list[Work]]:
    """Store in the work that the backend failed on it; returns the calls to make if several programs are concerned."""
    if len(work) > 1:
        return [[item] for item in work]
    log(failure)
    work[0].not_compiled = NotCompiled(text_of(failure), HINT, failure.source, failed=True)
    return []


def _note_refusal(work: Sequence[Work], refusal: Unsupported) -> list[Work]:
    """Store in the work why the backend refused it; returns the work that was not refused.

    The refusal is about the program that contains ``refusal.node``, or about all of ``work`` if it names no node.
    """
    concerned, source = list(work), refusal.source
    if isinstance(refusal.node, Node):
        # if no program contains the node, all of ``work`` is concerned
        containing = [w for w in work if any(n is refusal.node for n in all_nodes(w.program.graph_module))]
        concerned = containing or concerned
        source = source or source_of(refusal.node)
    for item in concerned:
        # not the error itself: its traceback would keep the program alive for as long as the report
        item.not_compiled = NotCompiled(refusal.message, refusal.hint or "", source)
    return [w for w in work if w.not_compiled is None]
