"""Check unusual programs: without operators, with branches, loops and dynamic shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from delegraph.backend import CompileSpec
from delegraph.errors import DelegraphError
from delegraph_programs import user_inputs

from .. import sweep
from ..backend_under_test import BackendUnderTest
from ..check import check
from ..check_result import Figures
from ..configured_backend import ConfiguredBackend
from ..control_flow import CONTROL_FLOW
from ..failures import CheckFailed, CheckSkipped
from ..lowering_attempt import LoweringAttempt, Phase, quiet
from ..programs import AUTO_SIZES, LEAST, MOST, NOTHING, PROGRAMS, SIZED, Program
from ..subprocesses import Report
from ..sweep import Series
from ..trial import (
    Fault,
    Kind,
    Outcome,
    compare_with_eager,
    is_comparable,
    partitioning_fault,
    try_program,
)


def _outcome(
    program: Program, attempt: LoweringAttempt, kind: Kind, why: str | None
) -> list[Outcome]:
    faults = () if why is None else (Fault(kind, why),)
    outcome = Outcome(
        program.name, reached=True, accepted=attempt.delegated_operators, faults=faults
    )
    return [outcome]


def _wrong(attempt: LoweringAttempt, backend: ConfiguredBackend) -> str | None:
    """Describe how lowering fails, or how results differ from eager; None if right."""
    if attempt.lowered is None:
        return f"lowering failed: {attempt.failed}"
    if not is_comparable(attempt, backend):
        return None
    _, fault = compare_with_eager(attempt, backend)
    return None if fault is None else fault.text


# --- nothing to delegate


@check
def empty_programs(backend: BackendUnderTest) -> Figures:
    """A program without delegable operators is lowered, and computes the same as
    eager.
    """
    outcomes = sweep.run(backend, EMPTY)
    sweep.raise_first_fault(sweep.faults_of(outcomes), backend, EMPTY)
    answer = backend.run_apart(preprocess_empty, _compile_specs(backend))
    why = answer.result
    if answer.failure:
        why = f"preprocess of a program without calls {answer.failure}"
    if why:
        advice = "compile it, or raise delegraph.errors.Unsupported"
        if answer.died:
            advice = Kind.CRASH.value
        raise CheckFailed(why, NOTHING[0], advice)
    return {"programs": len(NOTHING) + 1}


def try_empty(program: Program, backend: ConfiguredBackend) -> list[Outcome]:
    """Return the outcome of a program; none if no backend can lower it."""
    attempt = backend.attempt(program)
    if attempt is None or attempt.phase is Phase.ENGINE:
        return []
    return _outcome(program, attempt, Kind.EMPTY, _wrong(attempt, backend))


EMPTY = Series(f"{__name__}:EMPTY", lambda backend: iter(NOTHING), try_empty)


def _compile_specs(backend: BackendUnderTest) -> tuple[CompileSpec, ...]:
    """Return the compile specs that the partitioner gives to the samples."""
    for attempt in backend.samples:
        if attempt.partitioned is not None:
            for spec in attempt.partitioned.partition_tags.values():
                return spec.compile_specs
    return ()


def preprocess_empty(
    backend: ConfiguredBackend, specs: tuple[CompileSpec, ...], report: Report
) -> str | None:
    """Call preprocess with an empty program; return an error if it raises a wrong one.

    Runs in another process.
    """
    exported = NOTHING[0].exported
    if exported is None:
        return None
    try:
        with quiet():
            program = exported[0].run_decompositions({})
            backend.registry.get_backend(backend.name).preprocess(program, list(specs))
    except DelegraphError:
        return None
    except (Exception, SystemExit) as e:
        return f"preprocess of a program without calls raised {type(e).__name__}: {e}"
    return None


# --- branches and loops


@check
def control_flow(backend: BackendUnderTest) -> Figures:
    """Programs with branches and loops are lowered, and every branch computes the same
    as eager.
    """
    names = {p.name for p in CONTROL_FLOW}
    # numerics reports outcomes of members, which have no control flow
    outcomes = [o for o in sweep.run(backend, SUBGRAPHS) if o.program in names]
    sweep.raise_first_fault(sweep.faults_of(outcomes), backend, SUBGRAPHS)
    if not outcomes:
        raise CheckSkipped(
            "the operators of these programs fail without branches and loops, too; see"
            " numerics"
        )
    operators = sweep.Sweep(outcomes).accepted
    return {"programs": len(outcomes), "operators_delegated": len(operators)}


def try_control_flow(program: Program, backend: ConfiguredBackend) -> list[Outcome]:
    """Return the outcome with the inputs, and with negated inputs.

    If both fail, the same operators are tried without control flow.
    """
    attempt = backend.attempt(program)
    if attempt is None or attempt.phase is Phase.ENGINE:
        return []
    negated = replace(attempt, inputs=tuple(-value for value in attempt.inputs))
    why = _wrong(attempt, backend) or _wrong(negated, backend)
    if why:
        faulty = []
        for member in program.members:
            faulty += [o for o in try_program(member, backend) if o.faults]
        if faulty:
            return faulty
    return _outcome(program, attempt, Kind.SUBGRAPHS, why)


SUBGRAPHS = Series(
    f"{__name__}:SUBGRAPHS",
    lambda backend: iter(CONTROL_FLOW),
    try_control_flow,
    CONTROL_FLOW,
)


# --- dynamic shapes


@check
def dynamic_shapes(backend: BackendUnderTest) -> Figures:
    """Programs with dynamic first dimensions compute the same as eager at several
    sizes, or are refused with a reason.
    """
    # other checks report programs that are faulty with fixed sizes
    sound = {o.program for o in backend.rehearsal if not o.faults}
    sound |= {program.name for program in SIZED}
    outcomes = [o for o in sweep.run(backend, DYNAMIC) if o.program in sound]
    faults = sweep.faults_of(outcomes)
    sweep.raise_first_fault(faults, backend, DYNAMIC, shown=_as_dynamic)
    if not outcomes:
        raise CheckSkipped("torch can export no sample program with dynamic shapes")
    return {
        "programs": len(outcomes),
        "delegated_in_part": sum(bool(o.accepted) for o in outcomes),
    }


def try_dynamic(program: Program, backend: ConfiguredBackend) -> list[Outcome]:
    """Return the outcome of a program with dynamic first dimensions."""
    sizes = _varying_sizes(program)
    if not sizes:
        return []
    attempt = backend.attempt(program, dynamic=True)
    if attempt is None or attempt.phase is Phase.ENGINE:
        return []
    why = (
        _fault_at_lowering(attempt)
        or _fixed(sizes)
        or _wrong_at_sizes(attempt, backend)
    )
    return _outcome(program, attempt, Kind.SIZES, why)


def _fault_at_lowering(attempt: LoweringAttempt) -> str | None:
    """Describe how lowering or partitioning fails; None if it does not."""
    if attempt.lowered is None:
        return f"lowering failed: {attempt.failed}"
    fault = partitioning_fault(attempt)
    return None if fault is None else fault.text


def export_dynamic() -> None:
    """Export the samples with dynamic sizes."""
    for program in (*PROGRAMS, *SIZED):
        program.batched and program.exported_dynamic  # noqa: B018 - kept by the program


def _dynamic_programs(backend: ConfiguredBackend) -> Iterator[Program]:
    """Yield the samples that have a size of a batch, and the backend's own example."""
    for program in (*backend.programs, *SIZED):
        if program.batched or program.name == "example":
            yield program


DYNAMIC = Series(
    f"{__name__}:DYNAMIC", _dynamic_programs, try_dynamic, export=export_dynamic
)


def _varying_sizes(program: Program) -> list[Any]:
    """Return the symbolic sizes of inputs, without those that export made constant."""
    if program.exported_dynamic is None:
        return []
    sizes: list[Any] = []
    for node in user_inputs(program.exported_dynamic[0]):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            sizes += [size for size in value.shape if isinstance(size, torch.SymInt)]
    return [size for size in sizes if size.node.maybe_as_int() is None]


def _fixed(sizes: list[Any]) -> str | None:
    """Return an error if lowering made a dynamic size of the caller's program constant."""
    for size in sizes:
        if size.node.maybe_as_int() is not None:
            return f"lowering fixed a dynamic size of the caller's program to {size}"
    return None


def _wrong_at_sizes(attempt: LoweringAttempt, backend: ConfiguredBackend) -> str | None:
    """Describe how a delegate fails at the size of the example or at others."""
    if not is_comparable(attempt, backend):
        return None
    # inputs of the backend's own example have the sizes that it chose
    sizes = attempt.program.dynamic_sizes if attempt.program.batched else (3,)
    for size in sizes:
        with quiet():
            _, inputs = attempt.program.make(size)
        _, fault = compare_with_eager(replace(attempt, inputs=inputs), backend)
        if fault is not None:
            return f"called with N = {size}: {fault.text}"
    return None


def _as_dynamic(program: Program) -> Program:
    """Return the program with the lines that export it dynamically."""
    size = "torch.export.Dim.AUTO"
    if program.dynamic_sizes != AUTO_SIZES:
        size = f"torch.export.Dim('n', min={LEAST}, max={MOST})"
    lines = [
        "import torch",
        program.source.rstrip(),
        f"n = {size}  # for every first dimension",
        "sizes = [{0: n} if x.dim() else None for x in inputs]",
        "model = torch.export.export(model, tuple(inputs), dynamic_shapes=sizes)",
    ]
    return replace(program, source="\n".join(lines))
