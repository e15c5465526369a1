"""The steps of a lowering, in order.

``delegraph.lower`` exports its models and calls ``lower_exported``. Other entry points,
such as ExecuTorch's ``to_edge`` and ``to_backend`` in a plugin, call
``lower_programs``.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import NamedTuple

from delegraph_programs import TRACING, all_nodes
from delegraph_programs.higher_order_subgraphs import next_handles
from delegraph_programs.separate_inputs import equal_inputs_note
from delegraph_programs.type_aliases import Transform
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node

from ..delegates.find_delegates import DelegateInfo
from ..discovery.registry import Registry, default_registry
from ..partitioner import Partitioner
from ..report.left_on_host import reasons_of
from ..report.model import Report
from ..report.rows import GivenBack, Reasons, ReportOrigin, Rows, SupportCheck
from .compile_partitions import PartitionCompiler, expect_known_backends
from .compiler_interface import Session
from .decompose_on_demand import Decomposer, in_core_aten, rebuild
from .export import Source, export_method
from .extract import begin_work
from .give_back_partitions import given_back_row
from .insert import insert_delegates
from .normalize import normalize_programs
from .order_host_program import random_notes
from .partition_records import Plan, Work
from .planner import Planner, compute_constants
from .serial_compiler import Serial
from .support_check_for_report import repeatable_check

STEPS = (
    "export",
    "normalize",
    "decompose-and-partition",
    "extract",
    "compile",
    "insert",
    "finish",
)


class Turn(NamedTuple):
    """The turn of one backend: its name in the report, and its partitioner by method.

    ``may_repeat``: the report may ask these partitioners again, because they were made
    for this lowering, and not by the caller.
    """

    name: str
    partitioners: Mapping[str, Partitioner]
    may_repeat: bool = False


class Settings(NamedTuple):
    """How programs are lowered.

    ``session``: calls partitioners and compiles partitions. ``turns``: one for each
    backend, in order of preference. ``transforms``: method -> the user's functions that
    change its program. ``decomposes``: decompose operators that no backend keeps.
    ``whole``: the one partition of a method is called with all inputs of its program.

    ``has_report``: the caller gets a report. Only then are constants folded, and only
    then do partitions that their compiler refuses go to the next backend or the host.
    Without a report, such a refusal is an error, and so is an exception of a
    partitioner.
    """

    registry: Registry
    session: Session
    turns: Sequence[Turn]
    transforms: Mapping[str, Sequence[Transform]] = MappingProxyType({})
    decomposes: bool = True
    has_report: bool = False
    whole: bool = False


@dataclass
class Journal:
    """The notes of a lowering, and the time of each step, for the report."""

    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STEPS, 0.0))

    @contextmanager
    def step(self, name: str, alone: bool = True) -> Iterator[None]:
        """Add the time of the block to the step ``name``.

        ``alone``: other threads that lower wait for the block. Blocks that trace need
        this, because tracing is not thread-safe. A block that raises an exception is
        not timed.
        """
        with TRACING if alone else nullcontext():
            start = time.perf_counter()
            yield
            self.seconds[name] += time.perf_counter() - start


@dataclass
class Findings:
    """Everything that the report needs besides the programs.

    ``delegates``: those of all methods and backends. ``reasons``: method -> why
    backends refused operators. ``given_back``: partitions that compilers refused.
    ``checks``: method and backend -> the support check, if the report may repeat it.
    """

    delegates: list[DelegateInfo] = field(default_factory=list)
    reasons: dict[str, Reasons] = field(default_factory=dict)
    given_back: list[GivenBack] = field(default_factory=list)
    checks: dict[tuple[str, str], SupportCheck] = field(default_factory=dict)


class Lowered(NamedTuple):
    """The result of a lowering.

    ``changed``: method -> how transforms changed the types of its inputs and outputs.
    """

    programs: dict[str, ExportedProgram]
    delegates: list[DelegateInfo]
    report: Report
    changed: dict[str, str]


def export_programs(
    sources: Mapping[str, Source], journal: Journal
) -> dict[str, ExportedProgram]:
    """Return method -> exported program, for the methods of ``sources``."""
    programs: dict[str, ExportedProgram] = {}
    with journal.step("export"):
        for method, source in sources.items():
            program = export_method(method, source)
            # the user exported this program, perhaps with one tensor as two inputs
            if source.program is program and (note := equal_inputs_note(program)):
                journal.notes.append(f"{method}: {note}")
            programs[method] = program
    return programs


def lower_exported(
    exported: Mapping[str, ExportedProgram], settings: Settings, journal: Journal
) -> Lowered:
    """Lower programs: normalize them, then let each backend take its part.

    ``exported``: method -> its program, which does not change. ``journal`` gets notes,
    and the time of each step. Later backends get the program with the delegates of
    earlier ones.
    """
    with journal.step("normalize"):
        programs, changed, notes = normalize_programs(exported, settings.transforms)
        journal.notes += notes
    decomposer = Decomposer(session=settings.session, may_fail=settings.has_report)
    findings = Findings()
    names = (f"lowered_module_{k}" for k in count())
    for k, turn in enumerate(settings.turns):
        with journal.step("decompose-and-partition"):
            planner = Planner(
                decomposer if settings.decomposes else None,
                folds_constants=settings.has_report,
                whole=settings.whole,
            )
            this_and_later = [other.partitioners for other in settings.turns[k:]]
            plans = planner.plan(programs, this_and_later, settings.registry)
            journal.notes += planner.notes
        with journal.step("extract"):
            work: list[Work] = []
            for method, plan in _all_plans(plans):
                work += [begin_work(method, plan, part) for part in plan.partitions]
        with journal.step("compile", alone=False):  # compilers may run side by side
            expect_known_backends(work, turn.name, settings.registry)
            compiler = PartitionCompiler(
                settings.registry, settings.session, gives_back=settings.has_report
            )
            done = compiler.compile(plans, work)
            journal.notes += done.notes
        with journal.step("insert"):
            for method, plan in plans.items():
                handles = next_handles(programs[method].graph_module)
                program = insert_delegates(plan, done.work, handles, names)
                findings.delegates += _delegates(method, program, done.work)
                programs[method] = program
            _add_refusals(findings, turn, plans, done.refused)
    with journal.step("finish"):
        if findings.given_back and settings.has_report:
            _compute_left_constants(programs, journal)
        journal.notes += decomposer.notes
        journal.notes += settings.session.notes
        journal.notes += random_notes(programs, findings.delegates)
    report = _report(programs, findings, settings, journal)
    return Lowered(programs, findings.delegates, report, changed)


def _all_plans(plans: Mapping[str, Plan]) -> list[tuple[str, Plan]]:
    """Return (method, plan) for all plans, those of subgraphs included."""
    return [
        (method, plan) for method, top in plans.items() for plan in top.with_inner()
    ]


def _delegates(
    method: str, program: ExportedProgram, work: Sequence[Work]
) -> list[DelegateInfo]:
    """Return the delegates of ``method``, and set their names.

    ``program``: the program of ``method``, which calls these delegates now. ``work``:
    the work on the partitions of all methods.
    """
    names = {module: name for name, module in program.graph_module.named_modules()}
    return [
        item.to_delegate(names[item.module]) for item in work if item.method == method
    ]


def _add_refusals(
    findings: Findings, turn: Turn, plans: Mapping[str, Plan], refused: Sequence[Work]
) -> None:
    """Add the refusals by the backend of ``turn`` to ``findings``.

    Also adds its support check of each method, if the report may repeat the check.
    ``plans``: the backend's plans. ``refused``: the partitions that its compiler
    refused.
    """
    findings.given_back += [given_back_row(turn.name, item) for item in refused]
    for method, plan in _all_plans(plans):
        reasons = findings.reasons.setdefault(method, {})
        reasons.update(reasons_of(turn.name, plan.refusals))
    if turn.may_repeat:
        for method, top in plans.items():
            not_compiled: list[Node] = []
            for item in refused:
                if item.method == method:
                    not_compiled += item.partition.nodes
            check = repeatable_check(top, turn.partitioners[method], not_compiled)
            if check is not None:
                findings.checks[method, turn.name] = check


def _compute_left_constants(
    programs: dict[str, ExportedProgram], journal: Journal
) -> None:
    """Compute the calls on constants that the last backend gave back to the host.

    ``Planner`` computes calls that a partitioner refuses. It cannot compute calls that
    only a compiler refuses. Replaces changed programs in ``programs``, and adds notes.
    """
    for method, program in programs.items():
        # without tags, because delegates are modules now: all other calls are the host's
        if note := compute_constants(program, tags={}, also_delegated=False):
            journal.notes.append(f"{method}: {note}")
            programs[method] = rebuild(program)


def _report(
    programs: Mapping[str, ExportedProgram],
    findings: Findings,
    settings: Settings,
    journal: Journal,
) -> Report:
    """Return the report. Its rows are built when they are first read."""
    origin = ReportOrigin(
        programs,
        findings.delegates,
        findings.reasons,
        backends=[turn.name for turn in settings.turns],
        checks=findings.checks,
        given_back=findings.given_back,
    )
    # the names are read now, because a backend may be taken out of the registry before
    # the report is read
    names = {
        delegate.backend_id: settings.registry.spec(delegate.backend_id).name
        for delegate in findings.delegates
    }

    def rows() -> Rows:
        """Return the rows of the report."""
        # imported late: many reports are never read
        from ..report.build import build_rows

        nodes = {
            method: all_nodes(program.graph_module)
            for method, program in origin.programs.items()
        }
        return build_rows(origin, nodes, names)

    return Report(rows, journal.notes, journal.seconds, origin)


def lower_programs(
    programs: Mapping[str, ExportedProgram],
    turns: Sequence[Mapping[str, Partitioner]] = (),
    *,
    transforms: Mapping[str, Sequence[Transform]] = MappingProxyType({}),
    core_aten: Collection[OpOverload] | None = None,
    whole: bool = False,
    registry: Registry | None = None,
) -> dict[str, ExportedProgram]:
    """Lower ``programs`` without a report, for entry points other than ``lower``.

    Returns method -> lowered program; the given programs do not change. ``turns``: for
    each backend, in order of preference, a mapping method -> partitioner. A backend is
    not asked about a method that its mapping lacks. ``transforms``: method -> functions
    that change its normalized program. ``whole``: the one delegate of a method takes
    all inputs of its program, in their order. ``registry`` None: the default registry.

    If ``core_aten`` is None, nothing is decomposed. Otherwise, operators that no
    backend keeps are decomposed. The host's calls are also decomposed to core ATen,
    except calls of the operators in ``core_aten``.

    Raises the error of a compiler that refuses a partition.
    """
    registry = registry or default_registry()
    with Serial().session(registry, ()) as session:
        settings = Settings(
            registry,
            session,
            # partitioners need not name their backend: the first is "choice 1" in notes
            [Turn(f"choice {k + 1}", turn) for k, turn in enumerate(turns)],
            transforms,
            decomposes=core_aten is not None,
            whole=whole,
        )
        lowered = lower_exported(programs, settings, Journal()).programs
    if core_aten is None:
        return lowered
    return {m: in_core_aten(program, core_aten) for m, program in lowered.items()}
