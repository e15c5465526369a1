"""The steps of a lowering, in order, and the one driver that runs and times them.

``delegraph.lower`` makes a ``Lowering``, calls ``run`` for all steps, and reads the
results from it. Other faces, such as ExecuTorch's ``to_edge`` and ``to_backend`` in a
plugin, call ``lower_programs``, which runs some of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count, groupby
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from delegraph_programs import TRACING, all_nodes, normalize, output_values, user_inputs
from delegraph_programs.call_arguments import VARYING
from delegraph_programs.distinct_inputs import equal_inputs_note
from delegraph_programs.exported_program import forget_guards, why_not_valid
from delegraph_programs.subgraphs import (
    Subgraph,
    extract_subgraphs,
    next_handles,
    put_back,
)
from delegraph_programs.training_mode import training_note
from delegraph_programs.type_aliases import Transform
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node

from ..delegates.delegates import DelegateInfo
from ..delegates.lowered_module import Argument
from ..discovery.attribution import attributing
from ..discovery.registry import Registry, default_registry
from ..errors import BackendNotFound, ContractViolation
from ..partitioner import Partitioner
from ..report.collect import reasons_of
from ..report.model import Report
from ..report.rows import Reasons, ReportOrigin, Rows
from .checks import settle_checks
from .constants import compute_constants
from .decompose import Decomposer, rebuild, support_of
from .export import Source, export_method
from .extract import ProgramsOf, begin_work
from .failures import log
from .fingerprint import fingerprint_of
from .give_back import give_back, given_back_row
from .insert import insert_delegates
from .known_scalars import fold_scalars
from .narrow import Narrowed, narrow
from .order import order, random_notes
from .partition import NotCompiled, Plan, Work
from .plan import ask, check_settings, make_plan
from .serial import Serial
from .session import Refused, Request, Session
from .snapshot import Snapshot
from .state import mark_shared_state
from .what_if import SupportChecks


class Round(NamedTuple):
    """What one backend is asked: its name in the report, and its partitioner for each
    method that it is asked about.

    ``own``: the partitioners were made for this lowering, and not by the caller. Only
    then may the report ask them again.
    """

    name: str
    partitioners: Mapping[str, Partitioner]
    own: bool = False


@dataclass
class Lowering:
    """The state of one lowering, which every step reads and changes, whichever entry
    point began it.

    The first group of fields is set by the entry point:

    - ``sources``: what the export step exports; ``programs`` instead, if that step is
      skipped.
    - ``transforms``: the user's, by method. ``rounds``: one for each backend, in order
      of preference.
    - ``decomposed``: operators that no backend keeps are decomposed.
    - ``in_core_aten``: what the host computes becomes core ATen, apart from operators
      to ``keep`` whole.
    - ``folds_constants``: calls on constants alone that a backend refuses are computed
      now.
    - ``session``: calls partitioners and compiles partitions.
    - ``gives_back``: a partition that its compiler refuses goes to the next backend or
      to the host. Without it, that is an error, because an entry point without a report
      could not tell the user.
    - ``whole``: the one partition stands for the whole program, and is called with all
      of its inputs.

    The second group is what steps leave for later steps and for the report. ``turn``:
    the index of the current round. ``plans`` and ``work``: those of the current round.
    ``given_back``: the refused partitions of all rounds, with the names of their
    backends. ``changed``: method -> how transforms changed the types of its inputs and
    outputs.
    """

    registry: Registry
    session: Session
    sources: Mapping[str, Source] = field(default_factory=dict)
    programs: dict[str, ExportedProgram] = field(default_factory=dict)
    transforms: Mapping[str, Sequence[Transform]] = field(default_factory=dict)
    rounds: Sequence[Round] = ()
    decomposed: bool = True
    in_core_aten: bool = False
    keep: Collection[object] = ()
    folds_constants: bool = False
    gives_back: bool = False
    whole: bool = False

    turn: int = 0
    plans: dict[str, Plan] = field(default_factory=dict)
    work: list[Work] = field(default_factory=list)
    given_back: list[tuple[str, Work]] = field(default_factory=list)
    decomposer: Decomposer = field(init=False)
    names: Iterator[str] = field(
        default_factory=lambda: (f"lowered_module_{k}" for k in count())
    )
    delegates: list[DelegateInfo] = field(default_factory=list)
    reasons: dict[str, Reasons] = field(default_factory=dict)
    what_if: SupportChecks = field(default_factory=SupportChecks)
    notes: list[str] = field(default_factory=list)
    changed: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.decomposer = Decomposer(session=self.session, may_fail=self.gives_back)

    def report(self) -> Report:
        """The report of the rounds up to the current one."""
        backends = [r.name for r in self.rounds[: self.turn + 1]]
        given_back = [given_back_row(name, work) for name, work in self.given_back]
        origin = ReportOrigin(
            self.programs,
            self.delegates,
            self.reasons,
            backends,
            self.what_if,
            given_back,
        )
        # the names are read now, because a backend may be taken out of the registry
        # before the report is read
        names = {
            d.backend_id: self.registry.spec(d.backend_id).name for d in self.delegates
        }

        def rows() -> Rows:
            """The rows of the report, built when they are first read."""
            # imported late: many reports are never read
            from ..report.build import build_rows

            nodes = {
                method: all_nodes(program.graph_module)
                for method, program in origin.programs.items()
            }
            return build_rows(origin, nodes, names)

        return Report(rows, self.notes, self.seconds, origin)


def _export(lowering: Lowering) -> None:
    """Step ``export``: one exported program for each method."""
    for method, source in lowering.sources.items():
        lowering.programs[method] = program = export_method(method, source)
        if source.program is program and (note := equal_inputs_note(program)):
            lowering.notes.append(f"{method}: {note}")


def _normalize(lowering: Lowering) -> None:
    """Step ``normalize``: normalize each program, apply the user's transforms, and
    normalize the result of each.
    """
    for method, exported in lowering.programs.items():
        # before writes become functional, which replaces batch norm that writes its
        # statistics by another operator
        if note := training_note(exported):
            lowering.notes.append(f"{method} was {note}")
        program = _normalized(lowering, method, exported)
        transforms = lowering.transforms.get(method, ())
        # types of inputs and outputs before the transforms
        border = _border(program) if transforms else {}
        for transform in transforms:
            changed = transform(program)
            if not isinstance(changed, ExportedProgram):
                text = (
                    f"{_name_of_transform(transform)} returned"
                    f" {type(changed).__name__}, not an ExportedProgram"
                )
                raise ContractViolation("contract-violation", text)
            program = _normalized(lowering, method, changed)
            if (why := why_not_valid(program)) is not None:
                text = (
                    f"{_name_of_transform(transform)} returned a program that torch"
                    f" does not take for valid: {why}"
                )
                raise ContractViolation("contract-violation", text)
        # If a transform changed the type of an input or output, the result can no
        # longer be compared with eager. The first one is named.
        retyped = [
            (name, kind)
            for name, kind in _border(program).items()
            if border.get(name, kind) != kind
        ]
        for name, kind in retyped[:1]:
            text = (
                f"{name} is {kind} since a transform changed it, and {border[name]} in"
                " eager PyTorch"
            )
            lowering.changed[method] = text
            forget_guards(program)
        lowering.programs[method] = program
    lowering.notes += mark_shared_state(lowering.programs)
    # after the marks: another method may write the buffer off which a number is read
    for method, program in lowering.programs.items():
        if note := str(fold_scalars(program)):
            lowering.notes.append(f"{method}: {note}")


def _border(program: ExportedProgram) -> dict[str, str]:
    """``input x`` or ``output 0`` -> its type as text, for the tensors that a program
    takes and returns.
    """
    outputs = zip(
        program.graph_signature.output_specs, output_values(program), strict=True
    )
    returned = [value for spec, value in outputs if spec.kind is OutputKind.USER_OUTPUT]
    nodes = {f"input {node.name}": node for node in user_inputs(program)}
    nodes |= {
        f"output {k}": value
        for k, value in enumerate(returned)
        if isinstance(value, Node)
    }
    vals = {name: node.meta.get("val") for name, node in nodes.items()}
    return {
        name: Argument.of(name, val).type
        for name, val in vals.items()
        if isinstance(val, torch.Tensor)
    }


def _name_of_transform(transform: Transform) -> str:
    """The name of a transform in errors."""
    return f"transform {getattr(transform, '__name__', type(transform).__name__)}"


def _normalized(
    lowering: Lowering, method: str, program: ExportedProgram
) -> ExportedProgram:
    """The normalized copy of a program; notes go to the report."""
    normal, notes = normalize(program)
    lowering.notes += [f"{method} was {text}" for text in notes]
    return normal


def _partition(lowering: Lowering) -> None:
    """Step ``decompose-and-partition``, for the methods about which the current backend
    is asked.
    """
    partitioners = lowering.rounds[lowering.turn].partitioners
    asked = {
        method: program
        for method, program in lowering.programs.items()
        if method in partitioners
    }
    with attributing(lowering.registry):
        for partitioner in {id(p): p for p in partitioners.values()}.values():
            check_settings(
                partitioner,
                {m: p for m, p in asked.items() if partitioners[m] is partitioner},
            )
        lowering.plans = {
            method: _plan_all(lowering, method, program)
            for method, program in asked.items()
        }


def _plan_all(lowering: Lowering, method: str, program: ExportedProgram) -> Plan:
    """The plan of a method's program, after checks and constants are settled.

    Checks go to the host or are dropped. Calls on constants alone that the backend
    refused are computed, if the lowering ``folds_constants``. After each such change
    the program is planned again.
    """
    plan = _plan(lowering, method, program)
    is_changed, note = settle_checks(plan)
    if note:
        lowering.notes.append(f"{method}: {note}")
    if is_changed:
        plan = _plan(lowering, method, rebuild(plan.program))
    only_tags = support_of(lowering.rounds[lowering.turn].partitioners[method]) is None
    while lowering.folds_constants and (
        note := compute_constants(plan, taken_too=only_tags)
    ):
        lowering.notes.append(f"{method}: {note}")
        plan = _plan(lowering, method, rebuild(plan.program))
    if lowering.whole:
        # The one delegate is called with all inputs of the program, in their order; not
        # with those that the export fixed, such as None or a text.
        inputs = [
            n
            for n in user_inputs(plan.program)
            if isinstance(n.meta.get("val"), VARYING)
        ]
        for partition in plan.partitions:
            partition.inputs = inputs
    return plan


def _plan(lowering: Lowering, method: str, program: ExportedProgram) -> Plan:
    """The plan of a program, with the plans of the subgraphs of calls that it leaves to
    the host.

    ``program``: that of ``method``, or a subgraph in it.
    """
    # the partitioner of the current backend, and those of the next ones
    partitioner, *later = [
        r.partitioners[method]
        for r in lowering.rounds[lowering.turn :]
        if method in r.partitioners
    ]
    if lowering.decomposed:
        plan = lowering.decomposer.plan(program, partitioner, later)
    else:
        plan = make_plan(ask(program, partitioner))
    plan.units = order(plan)
    on_host = [
        s
        for s in extract_subgraphs(plan.program)
        if not any(call in plan.tags for call in s.calls)
    ]
    plan.inner = [
        (subgraph, _plan(lowering, method, subgraph.program)) for subgraph in on_host
    ]
    taken = [
        (subgraph, inner)
        for subgraph, inner in plan.inner
        if _is_now_delegated(subgraph, inner)
    ]
    if not taken:
        return plan
    # The backend refused these calls because of their subgraphs. It takes the subgraphs
    # entirely now that they are decomposed, so ask about the calls again.
    put_back(
        plan.program, [(subgraph, rebuild(inner.program)) for subgraph, inner in taken]
    )
    return _plan(lowering, method, rebuild(plan.program))


def _is_now_delegated(subgraph: Subgraph, plan: Plan) -> bool:
    """Whether a subgraph was decomposed for ``plan``, its plan, and all of its calls
    are delegated now.
    """
    calls = [n for n in plan.program.graph.nodes if n.op == "call_function"]
    # if something was decomposed, the plan has a new program
    return plan.program is not subgraph.program and all(
        call in plan.tags for call in calls
    )


def _extract(lowering: Lowering) -> None:
    """Step ``extract``: begin the ``Work`` on each partition."""
    plans = [
        (method, plan) for method, top in lowering.plans.items() for plan in top.all()
    ]
    lowering.work = [
        begin_work(method, plan, partition)
        for method, plan in plans
        for partition in plan.partitions
    ]


def _compile(lowering: Lowering) -> None:
    """Step ``compile``: compile the work; partitions that a compiler refused are taken
    out of their plans.

    If a compiler failed on a partition, its parts are compiled. Only the parts that
    fail are lost.
    """
    _expect_known_backends(lowering)
    _compile_work(lowering, lowering.work)
    refused = [work for work in lowering.work if work.not_compiled is not None]
    narrowed = [
        narrow(work, lambda part: _compile_work(lowering, [part])) for work in refused
    ]
    lowering.work = [work for work in lowering.work if work.not_compiled is None]
    lowering.work += [work for one in narrowed for work in one.kept]
    for plan_of_method in lowering.plans.values():
        for plan in plan_of_method.all():
            give_back(plan, [one for one in narrowed if one.work.plan is plan])
    name = lowering.rounds[lowering.turn].name
    for one in narrowed:
        lowering.given_back += [(name, work) for work in one.refused]
        if not one.refused:
            lowering.notes.append(_split_note(one))
    # asked once for each backend and its settings, because a backend may have to start
    # its compiler to know
    fingerprints: dict[Any, str | None] = {}
    for work in lowering.work:
        assert work.result is not None, "refused work was taken out"
        backend = lowering.registry.installed(work.partition.spec.backend_id)
        specs = work.module.compile_specs
        settings = (work.module.backend_id, *specs)
        if settings not in fingerprints:
            fingerprints[settings] = fingerprint_of(backend, specs)
        work.module.attach(work.result, backend.producer, fingerprints[settings])


def _compile_work(lowering: Lowering, work: Sequence[Work]) -> None:
    """Compile partitions, and store the result of each, or the reason of its refusal.

    Raises the error of a refusal unless the lowering gives refused partitions back
    (``gives_back``).
    """
    requests: list[Request] = []
    for item in work:
        spec = item.partition.spec
        backend = lowering.registry.installed(spec.backend_id)
        # a partitioner may give a backend's short name: from here on, modules have the
        # name of its class
        item.module.belongs_to(backend.kind.__name__)
        requests.append(
            Request(
                backend,
                tuple(spec.compile_specs),
                item.method,
                item.partition.tag,
                ProgramsOf(item),
            )
        )
    answers = lowering.session.compile(requests)
    if len(answers) != len(requests):
        name = type(lowering.session).__name__
        text = f"{name} returned {len(answers)} answers for {len(requests)} requests"
        raise ContractViolation("contract-violation", text)
    for item, compiled in zip(work, answers, strict=True):
        item.seconds["compile"] = compiled.seconds
        item.origin = compiled.origin
        if compiled.equal_to is not None:
            item.equal_to = work[compiled.equal_to]
        if not isinstance(compiled.result, Refused):
            item.result = compiled.result
        elif lowering.gives_back:
            item.not_compiled = _not_compiled(compiled.result)
        else:
            raise compiled.result.error


def _not_compiled(refused: Refused) -> NotCompiled:
    """The reason of a refusal for the report. Logs the error if the compiler failed."""
    if refused.has_failed:
        log(refused.error)
    # not the error itself: its traceback would keep the program alive for as long as
    # the report
    return NotCompiled(
        refused.reason, refused.hint, refused.error.source, refused.has_failed
    )


def _split_note(narrowed: Narrowed) -> str:
    """The note for a partition that only compiles in several parts."""
    work = narrowed.work
    assert work.not_compiled is not None
    parts = ", ".join(part.partition.tag for part in narrowed.kept)
    return (
        f"{work.method}: partition {work.partition.tag} compiles only as {parts}:"
        f" {work.not_compiled.reason}"
    )


def _expect_known_backends(lowering: Lowering) -> None:
    """Raise an error that names the partitioner if it gave a partition to a backend
    that is not installed.
    """
    for work in lowering.work:
        backend_id = work.module.backend_id
        try:
            lowering.registry.spec(backend_id)
        except BackendNotFound as e:
            asked = lowering.rounds[lowering.turn].name
            e.hint = (
                f"the partitioner of {asked!r} gave the partition"
                f" {work.partition.tag!r} to {backend_id!r}"
            )
            raise


def _insert(lowering: Lowering) -> None:
    """Step ``insert``: replace partitions by calls of delegates, and store what the
    report needs of this round.

    That is the delegates, the reasons of refusals, and what is needed to ask the
    backend again.
    """
    current = lowering.rounds[lowering.turn]
    name = current.name
    for method, top in lowering.plans.items():
        handles = next_handles(lowering.programs[method].graph_module)
        lowering.programs[method] = program = insert_delegates(
            top, lowering.work, handles, lowering.names
        )
        places = {
            module: place for place, module in program.graph_module.named_modules()
        }
        lowering.delegates += [
            w.info(places[w.module]) for w in lowering.work if w.method == method
        ]
        for plan in top.all():
            lowering.reasons.setdefault(method, {}).update(
                reasons_of(name, plan.refusals)
            )
        if current.own:
            # nodes of the partitions that this backend's compiler refused
            given_back = [
                w
                for backend, w in lowering.given_back
                if (backend, w.method) == (name, method)
            ]
            nodes = [n for w in given_back for n in w.partition.nodes]
            lowering.what_if.keep(
                method, name, top, current.partitioners[method], nodes
            )


def _finish(lowering: Lowering) -> None:
    """Step ``finish``: bring the host's calls into core ATen if that is wanted, and
    collect notes.

    Before that, calls on constants alone are computed that are the host's because the
    last backend's compiler refused their partition.
    """
    decomposer = lowering.decomposer
    # no backend was asked about what the last one gave back
    if lowering.given_back and lowering.folds_constants:
        for method, program in lowering.programs.items():
            if computed := compute_constants(
                Plan(program, [], {}, {}, [], Snapshot(program)), taken_too=False
            ):
                lowering.notes.append(f"{method}: {computed}")
                lowering.programs[method] = rebuild(program)
    if lowering.in_core_aten:
        lowering.programs = {
            m: decomposer.finish(p, lowering.keep) for m, p in lowering.programs.items()
        }
    lowering.notes += decomposer.notes
    lowering.notes += lowering.session.notes
    lowering.notes += random_notes(lowering.programs, lowering.delegates)


class Step(NamedTuple):
    """A named step. ``each_round``: it runs once for each backend, in one loop with its
    neighbours that do so too.

    ``alone``: no other thread lowers meanwhile, because torch, a partitioner or a
    transform may trace in it.
    """

    name: str
    run: Callable[[Lowering], None]
    each_round: bool = False
    alone: bool = True


STEPS = (
    # sources (modules with example inputs, or programs) -> one ExportedProgram a
    # method, still the caller's
    Step("export", _export),
    # programs -> private copies: functional, transformed, a debug handle on every call
    Step("normalize", _normalize),
    # programs -> plans: who computes which node, operators that no backend keeps
    # decomposed; refusals with reasons
    Step("decompose-and-partition", _partition, each_round=True),
    # plans -> work: for each partition a program for its backend and the module that
    # will stand for it, still empty
    Step("extract", _extract, each_round=True),
    # work -> work with the results of the backends; thread-safe backends may compile in
    # several threads
    Step("compile", _compile, each_round=True, alone=False),
    # programs, plans, work -> programs that call the modules, which now have their
    # blobs
    Step("insert", _insert, each_round=True),
    # programs -> programs whose host calls are core ATen, if the entry point asks for
    # that; the last notes
    Step("finish", _finish),
)


def run(lowering: Lowering, first: str = "export", last: str = "finish") -> Lowering:
    """Run the steps from ``first`` to ``last`` on ``lowering``; returns it.

    ``lowering.seconds`` gets the time of each step.
    """
    names = [step.name for step in STEPS]
    steps = STEPS[names.index(first) : names.index(last) + 1]
    lowering.seconds = {step.name: 0.0 for step in steps}
    # Neighbouring steps that run for each backend (``each_round``) are one loop: all of
    # them for the first backend, then all of them for the second one. Any other step
    # runs once.
    for repeated, group in groupby(steps, key=lambda step: step.each_round):
        together = tuple(group)
        for turn in range(len(lowering.rounds)) if repeated else (lowering.turn,):
            lowering.turn = turn
            for step in together:
                with TRACING if step.alone else nullcontext():
                    start = time.perf_counter()
                    step.run(lowering)
                    lowering.seconds[step.name] += time.perf_counter() - start
    return lowering


def lower_programs(
    programs: Mapping[str, ExportedProgram],
    turns: Sequence[Mapping[str, Partitioner]] = (),
    *,
    transforms: Mapping[str, Sequence[Transform]] = MappingProxyType({}),
    decompose: bool = False,
    keep: Collection[OpOverload] = (),
    whole: bool = False,
    registry: Registry | None = None,
) -> dict[str, ExportedProgram]:
    """Lower ``programs`` without a report; returns method -> lowered program. For entry
    points other than ``lower``.

    ``turns``: a mapping for each backend, in order of preference: method -> the
    backend's partitioner. A backend is not asked about a method that its mapping lacks.
    If ``turns`` is empty, nothing is delegated. ``transforms``: method -> functions
    that change its normalized program. ``decompose``: decompose operators that no
    backend keeps, and bring what is left to the host into core ATen, except operators
    to ``keep`` whole. ``whole``: the one delegate of a method takes all inputs of its
    program, in their order. ``registry`` None: the default one. The given programs
    never change.

    Raises an error for a partition that its compiler refuses, since no report could
    tell of it.
    """
    registry = registry or default_registry()
    with Serial().session(registry, ()) as session:
        lowering = Lowering(
            registry,
            session,
            programs=dict(programs),
            transforms=transforms,
            # the partitioners need not say which backend they are for: the first one is
            # "choice 1" in notes
            rounds=[
                Round(f"choice {k + 1}", partitioners)
                for k, partitioners in enumerate(turns)
            ],
            decomposed=decompose,
            in_core_aten=decompose,
            keep=keep,
            whole=whole,
        )
        return run(lowering, "normalize", "finish" if decompose else "insert").programs
