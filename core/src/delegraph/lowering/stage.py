"""Steps 3 to 6 for one partitioner a method: the one engine behind ``lower`` and ``to_backend``."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.export import ExportedProgram

from ..backend import BackendDetails, Blob, CompileSpec, PreprocessResult
from ..errors import ContractViolation
from ..lowered_module import LoweredBackendModule
from ..partitioner.contract import Partitioner
from ..signature import constant_tensor, placeholders
from .extract import arguments, extract
from .insert import insert, order
from .plan import Partition, Plan, fingerprint, make_plan, unchanged

if TYPE_CHECKING:
    from ..registry import Registry

Planner = Callable[[ExportedProgram, Partitioner], Plan]


@dataclass
class Work:
    """One partition on its way: its program for the backend, and the module that will stand for it."""

    method: str
    plan: Plan
    partition: Partition
    program: ExportedProgram
    module: LoweredBackendModule


@dataclass
class StageResult:
    """What one stage made: programs with their delegates called, the plans, the work done, seconds per phase."""

    programs: dict[str, ExportedProgram]
    plans: dict[str, Plan]
    work: list[Work]
    seconds: dict[str, float] = field(default_factory=dict)


@contextmanager
def collection_suspended() -> Iterator[None]:
    """No garbage collection inside: one full collection costs more than a lowering. The previous state comes back."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def run_stage(
    programs: Mapping[str, ExportedProgram],
    partitioners: Mapping[str, Partitioner],
    registry: Registry,
    planner: Planner = make_plan,
) -> StageResult:
    """Partition every method that has a partitioner, compile all partitions backend by backend, rebuild the methods.

    ``planner`` makes the plan of a method, of its own program or of one that it turned it into.
    """
    clock = _Clock()
    plans = {m: planner(p, partitioners[m]) for m, p in programs.items() if m in partitioners}
    ordered = {m: order(plan) for m, plan in plans.items()}
    clock.mark("partition")
    work = [_start(m, plan, part) for m, plan in plans.items() for part in plan.partitions]
    clock.mark("extract")
    results = _preprocess(work, registry)
    clock.mark("preprocess")
    lowered = {
        m: insert(p, ordered[m], {w.partition.tag: w.module for w in work if w.method == m}) for m, p in plans.items()
    }
    for item, result in zip(work, results, strict=True):
        item.module.attach(result)
    clock.mark("insert")
    return StageResult({**programs, **lowered}, plans, work, clock.seconds)


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def mark(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase], self._last = now - self._last, now


def _start(method: str, plan: Plan, partition: Partition) -> Work:
    program = extract(plan, partition)
    program.graph_module.meta["method"] = method
    inputs, outputs = (arguments(nodes, partition.boundary) for nodes in (partition.inputs, partition.outputs))
    module = LoweredBackendModule(partition.spec.backend_id, program, partition.spec.compile_specs, inputs, outputs)
    return Work(method, plan, partition, program, module)


def _preprocess(work: Sequence[Work], registry: Registry) -> list[PreprocessResult]:
    """One joint call a backend, in the order in which backends first appear; results in the order of ``work``."""
    found: dict[int, PreprocessResult] = {}
    for backend_id in dict.fromkeys(w.partition.spec.backend_id for w in work):
        backend = registry.get_backend(backend_id)
        mine = [w for w in work if w.partition.spec.backend_id == backend_id]
        for item in mine:
            item.module.backend_id = backend.__name__
        found.update(_compile(backend, mine))
    return [found[id(w)] for w in work]


def _compile(backend: type[BackendDetails], work: Sequence[Work]) -> dict[int, PreprocessResult]:
    methods = dict.fromkeys(w.method for w in work)
    programs = {m: [w.program for w in work if w.method == m] for m in methods}
    specs: dict[str, Sequence[list[CompileSpec]]] = {
        m: [list(w.partition.spec.compile_specs) for w in work if w.method == m] for m in methods
    }
    before = [(fingerprint(w.program), _versions(w.program)) for w in work]
    results = backend.preprocess_multimethod(programs, specs)
    _check_results(backend.__name__, programs, results)
    _check_untouched(backend.__name__, work, before)
    flat = [r for m in methods for r in results[m]]
    listed = [w for m in methods for w in work if w.method == m]
    return {id(w): r for w, r in zip(listed, flat, strict=True)}


def _versions(program: ExportedProgram) -> list[int]:
    return [constant_tensor(program, s)._version for _, s in placeholders(program) if s.target is not None]


def _check_results(backend: str, programs: Mapping[str, Sequence[Any]], results: Any) -> None:
    """The contract of ``preprocess_multimethod``: the same methods, as many results, each a PreprocessResult."""
    given = {m: len(r) for m, r in results.items()} if isinstance(results, Mapping) else results
    wanted = {m: len(p) for m, p in programs.items()}
    if given != wanted:
        text = f"{backend}.preprocess_multimethod returned {given} results a method; it was given {wanted} programs"
        raise ContractViolation("contract-violation", text)
    for result in (r for listed in results.values() for r in listed):
        if not isinstance(result, PreprocessResult) or not isinstance(result.processed_bytes, (bytes, Blob)):
            text = f"{backend}.preprocess returned {result!r:.80}; a PreprocessResult with bytes (or a Blob) is wanted"
            raise ContractViolation("contract-violation", text)


def _check_untouched(backend: str, work: Sequence[Work], before: Sequence[tuple[Any, list[int]]]) -> None:
    """A backend may rewrite the graph that it was given (the host then gets its own), but not the caller's weights."""
    for item, (graph, versions) in zip(work, before, strict=True):
        if _versions(item.program) != versions:
            text = f"{backend}.preprocess changed weights of partition {item.partition.tag}, which are the caller's"
            raise ContractViolation("contract-violation", text)
        if not unchanged(item.program, graph):
            item.module.original_module = extract(item.plan, item.partition)
