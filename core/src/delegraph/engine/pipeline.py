"""The steps of a lowering, from exported programs to programs with delegates."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager

from torch.export import ExportedProgram

from ..discovery.registry import Registry
from ..errors import ContractViolation
from ..partitioner import Partitioner
from ..program.delegates import DelegateInfo
from ..program.executor import OnMissingRuntime
from ..program.types import Transform
from ..report.collect import count_operators, host_calls, reasons_of, refusal_rows
from ..report.model import DelegateRow, Origin, Reasons, Report
from .decompose.on_demand import Decomposer
from .delegate.partition import Plan
from .delegate.random_order import random_notes
from .delegate.stage import StageResult, run_stage
from .delegate.state import shared_state_notes
from .functionalize.normalize import normalize
from .subgraphs import all_nodes


class _Lowering:
    """The programs on their way through the stages, and what is remembered for the report."""

    def __init__(
        self,
        exported: dict[str, ExportedProgram],
        registry: Registry,
        seconds: dict[str, float],
        executor: Executor | None = None,
    ) -> None:
        self.programs, self.registry, self.seconds, self.executor = exported, registry, seconds, executor
        self.notes: list[str] = []
        self.backends: list[str] = []
        self.reasons: dict[str, Reasons] = {m: {} for m in exported}
        self.decomposition = Decomposer()
        self.delegates: list[DelegateInfo] = []

    def normalize(self, transforms: Sequence[Transform]) -> None:
        with _timed(self.seconds, "normalize"):
            for method, program in self.programs.items():
                self.programs[method] = self._normalized(method, program)
                for transform in transforms:
                    changed = _transformed(transform, self.programs[method])
                    self.programs[method] = self._normalized(method, changed)
        self.notes += shared_state_notes(self.programs)

    def _normalized(self, method: str, program: ExportedProgram) -> ExportedProgram:
        normal, notes = normalize(program)
        self.notes += [f"{method} was {text}" for text in notes]
        return normal

    def stage(self, name: str, partitioner: Partitioner, later: Sequence[Partitioner] = ()) -> None:
        def planner(method: str, program: ExportedProgram, who: Partitioner) -> Plan:
            return self.decomposition.plan(program, who, later)

        before = self.decomposition.seconds
        who = dict.fromkeys(self.programs, partitioner)
        result = run_stage(self.programs, who, self.registry, planner, self.executor)
        result.seconds["partition"] -= self.decomposition.seconds - before
        for phase, s in result.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + s
        self.programs = result.programs
        self.backends.append(name)
        for method, plan in result.plans:
            self.reasons[method].update(reasons_of(name, plan.refusals))
        self._remember(result)
        self.notes += self.registry.notify("delegraph_after_partition", self.report("error"))

    def finish(self) -> None:
        """What no backend took reaches core ATen."""
        self.programs = {m: self.decomposition.finish(p) for m, p in self.programs.items()}
        self.seconds["decompose"] = self.decomposition.seconds
        self.notes += self.decomposition.notes
        self.notes += random_notes(self.programs, ((d.method, d.name, d.nodes) for d in self.delegates))

    def _remember(self, result: StageResult) -> None:
        places = {child: name for p in result.programs.values() for name, child in p.graph_module.named_modules()}
        for work in result.work:
            nodes = tuple(work.partition.nodes)
            self.delegates.append(DelegateInfo(work.method, places[work.module], work.module, nodes, work.seconds))

    def report(self, on_missing_runtime: OnMissingRuntime) -> Report:
        origin = Origin(self.programs, self.delegates, self.reasons, self.backends)
        report = Report(notes=list(self.notes), seconds=self.seconds, origin=origin)
        report.delegates = [self._row(d) for d in self.delegates]
        for method, program in self.programs.items():
            left = host_calls(all_nodes(program.graph_module))
            report.host[method] = count_operators(left)
            report.refusals += refusal_rows(method, left, self.reasons[method], self.backends)
        if on_missing_runtime == "eager":
            report.notes.append("delegates of backends without a runtime run in eager PyTorch on this host")
        return report

    def _row(self, info: DelegateInfo) -> DelegateRow:
        module = info.module
        facts = module.meta.get("_delegate_info_meta")
        return DelegateRow(
            method=info.method,
            name=info.name,
            backend=self.registry.spec(module.backend_id).name,
            producer=" ".join(filter(None, self.registry.producer(module.backend_id))),
            operators=count_operators(info.nodes),
            inputs=module.inputs,
            outputs=module.outputs,
            bytes=len(module.blob),
            facts={str(k): str(v) for k, v in facts.items()} if isinstance(facts, Mapping) else {},
            seconds=dict(info.seconds),
        )


def _transformed(transform: Transform, program: ExportedProgram) -> ExportedProgram:
    changed = transform(program)
    if not isinstance(changed, ExportedProgram):
        name = getattr(transform, "__name__", type(transform).__name__)
        text = f"transform {name} returned {type(changed).__name__}, not an ExportedProgram"
        raise ContractViolation("contract-violation", text)
    return changed


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - start
