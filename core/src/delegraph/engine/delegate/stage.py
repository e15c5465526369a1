"""Steps 3 to 6 for one partitioner a method: the one engine behind ``lower`` and ``to_backend``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch.export import ExportedProgram

from ...discovery.attribution import attributing
from ...partitioner.contract import Partitioner
from ...program.lowered_module import LoweredBackendModule
from ..subgraphs import Subgraph, extract_subgraphs, next_handles, put_back
from .compile import compile_all
from .extract import arguments, extract
from .insert import Unit, insert, order
from .partition import Partition, Plan, Work
from .plan import make_plan

if TYPE_CHECKING:
    from ...discovery.registry import Registry

Planner = Callable[[str, ExportedProgram, Partitioner], Plan]
"""Method, its program (or that of a body in it) and its partitioner -> the plan."""


@dataclass
class StageResult:
    """What one stage made: programs with their delegates called, (method, plan) pairs, the work, seconds per phase.

    A method has a plan of its own and one of every body in it that no partition took whole.
    """

    programs: dict[str, ExportedProgram]
    plans: list[tuple[str, Plan]]
    work: list[Work]
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass
class _Level:
    """A program of a method, planned, its units in order, and its bodies' levels."""

    method: str
    plan: Plan
    units: list[Unit]
    below: list[tuple[Subgraph, _Level]]

    def all(self) -> Iterator[_Level]:
        yield self
        for _, level in self.below:
            yield from level.all()


def run_stage(
    programs: Mapping[str, ExportedProgram],
    partitioners: Mapping[str, Partitioner],
    registry: Registry,
    planner: Planner = lambda method, program, who: make_plan(program, who),
    executor: Executor | None = None,
) -> StageResult:
    """Partition every method that has a partitioner, compile all partitions backend by backend, rebuild the methods.

    ``planner`` makes the plan of a method, of its own program or of one that it turned it into. ``executor`` runs the
    partitions of backends that say they are thread-safe.
    """
    clock = _Clock()
    with attributing(registry):
        tops = {m: _planned(m, p, partitioners[m], planner) for m, p in programs.items() if m in partitioners}
    levels = [level for top in tops.values() for level in top.all()]
    clock.mark("partition")
    work = [_start(level, part) for level in levels for part in level.plan.partitions]
    clock.mark("extract")
    results = compile_all(work, registry, executor)
    clock.mark("preprocess")
    lowered = {m: _rebuilt(top, work, next_handles(programs[m].graph_module)) for m, top in tops.items()}
    for item, result in zip(work, results, strict=True):
        item.module.attach(result)
    clock.mark("insert")
    return StageResult({**programs, **lowered}, [(lv.method, lv.plan) for lv in levels], work, clock.seconds)


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def mark(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase], self._last = now - self._last, now


def _planned(method: str, program: ExportedProgram, who: Partitioner, planner: Planner) -> _Level:
    """The plan of a program, and those of the bodies of calls that it leaves to the host."""
    plan = planner(method, program, who)
    left = [b for b in extract_subgraphs(plan.program) if not any(call in plan.tags for call in b.calls)]
    below = [(b, _planned(method, b.program, who, planner)) for b in left]
    return _Level(method, plan, order(plan), below)


def _start(level: _Level, partition: Partition) -> Work:
    clock = _Clock()
    program = extract(level.plan, partition)
    program.graph_module.meta.update(method=level.method, partition=partition.tag)
    inputs, outputs = (arguments(nodes, partition.boundary) for nodes in (partition.inputs, partition.outputs))
    module = LoweredBackendModule(partition.spec.backend_id, program, partition.spec.compile_specs, inputs, outputs)
    clock.mark("extract")
    return Work(level.method, level.plan, partition, program, module, clock.seconds)


def _rebuilt(level: _Level, work: Sequence[Work], handles: Iterator[int]) -> ExportedProgram:
    """The program of ``level`` with its delegates called, its bodies rebuilt before it."""
    made = [(body, _rebuilt(below, work, handles)) for body, below in level.below]
    dropped = put_back(level.plan.program, made)
    modules = {w.partition.tag: w.module for w in work if w.plan is level.plan}
    return insert(level.plan, level.units, modules, handles, dropped)
