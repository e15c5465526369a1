"""Check unusual programs: without operators, with branches, loops and dynamic shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from delegraph.backend import CompileSpec
from delegraph.errors import DelegraphError
from delegraph_programs import operator_name, user_inputs

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
    program: Program, one: LoweringAttempt, kind: Kind, why: str | None
) -> list[Outcome]:
    taken = (
        tuple(operator_name(n) for d in one.lowered.delegates for n in d.nodes)
        if one.lowered
        else ()
    )
    faults = () if why is None else (Fault(kind, why),)
    return [Outcome(program.name, reached=True, accepted=taken, faults=faults)]


def _wrong(one: LoweringAttempt, backend: ConfiguredBackend) -> str | None:
    """Return a fault that does not depend on the form of the program."""
    if one.lowered is None:
        return f"lowering failed: {one.failed}"
    if not is_comparable(one, backend):
        return None
    _, fault = compare_with_eager(one, backend)
    return None if fault is None else fault.text


# --- nothing to delegate


@check
def empty_programs(backend: BackendUnderTest) -> Figures:
    """A program with nothing to delegate, or that only returns its input, passes
    through and computes the same.
    """
    outcomes = sweep.run(backend, EMPTY)
    sweep.raise_first([(o, f) for o in outcomes for f in o.faults], backend, EMPTY)
    answer = backend.run_apart(preprocess_empty, _compile_specs(backend))
    why = (
        f"preprocess of a program without calls {answer.failure}"
        if answer.failure
        else answer.result
    )
    if why:
        advice = (
            Kind.CRASH.value
            if answer.died
            else "compile it, or raise delegraph.errors.Unsupported"
        )
        raise CheckFailed(why, NOTHING[0], advice)
    return {"programs": len(NOTHING) + 1}


def try_empty(program: Program, backend: ConfiguredBackend) -> list[Outcome]:
    """Return the outcome of a program; none if no backend can lower it."""
    one = backend.attempt(program)
    if one is None or one.phase is Phase.ENGINE:
        return []
    return _outcome(program, one, Kind.EMPTY, _wrong(one, backend))


EMPTY = Series(f"{__name__}:EMPTY", lambda backend: iter(NOTHING), try_empty)


def _compile_specs(backend: BackendUnderTest) -> tuple[CompileSpec, ...]:
    """Return the compile specs that the partitioner gives to the samples."""
    results = (one.partitioned for one in backend.samples)
    return next(
        (
            s.compile_specs
            for r in results
            if r is not None
            for s in r.partition_tags.values()
        ),
        (),
    )


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
    """Branches and loops are lowered, parts of their subgraphs too, and compute the
    same whichever way they go.
    """
    names = {p.name for p in CONTROL_FLOW}
    # the rest is for numerics
    outcomes = [o for o in sweep.run(backend, SUBGRAPHS) if o.program in names]
    sweep.raise_first([(o, f) for o in outcomes for f in o.faults], backend, SUBGRAPHS)
    if not outcomes:
        raise CheckSkipped(
            "what is wrong with these programs is wrong without branches and loops too;"
            " see numerics"
        )
    return {
        "programs": len(outcomes),
        "operators_delegated": len({name for o in outcomes for name in o.accepted}),
    }


def try_control_flow(program: Program, backend: ConfiguredBackend) -> list[Outcome]:
    """Return the outcome with the inputs, and with their signs changed.

    If both fail, the same operators are tried without control flow.
    """
    one = backend.attempt(program)
    if one is None or one.phase is Phase.ENGINE:
        return []
    why = _wrong(one, backend) or _wrong(
        replace(one, inputs=tuple(-i for i in one.inputs)), backend
    )
    alone = (
        [o for member in program.members for o in try_program(member, backend)]
        if why
        else []
    )
    return [o for o in alone if o.faults] or _outcome(program, one, Kind.SUBGRAPHS, why)


SUBGRAPHS = Series(
    f"{__name__}:SUBGRAPHS",
    lambda backend: iter(CONTROL_FLOW),
    try_control_flow,
    CONTROL_FLOW,
)


# --- dynamic shapes


@check
def dynamic_shapes(backend: BackendUnderTest) -> Figures:
    """Programs whose first dimensions are dynamic are handled, at other sizes too, or
    refused with a reason.
    """
    # other checks are about the rest
    sound = {o.program for o in backend.rehearsal if not o.faults}
    sound |= {program.name for program in SIZED}
    outcomes = [o for o in sweep.run(backend, DYNAMIC) if o.program in sound]
    sweep.raise_first(
        [(o, f) for o in outcomes for f in o.faults],
        backend,
        DYNAMIC,
        shown=_as_dynamic,
    )
    if not outcomes:
        raise CheckSkipped("no sample program could be exported with dynamic shapes")
    return {
        "programs": len(outcomes),
        "delegated_in_part": sum(bool(o.accepted) for o in outcomes),
    }


def try_dynamic(program: Program, backend: ConfiguredBackend) -> list[Outcome]:
    """Return the outcome of a program with dynamic first dimensions."""
    sizes = _varying_sizes(program)
    one = backend.attempt(program, dynamic=True) if sizes else None
    if one is None or one.phase is Phase.ENGINE:
        return []
    fault = partitioning_fault(one)
    why = (
        f"lowering failed: {one.failed}"
        if one.lowered is None
        else fault and fault.text
    )
    return _outcome(
        program, one, Kind.SIZES, why or _fixed(sizes) or _wrong_at_sizes(one, backend)
    )


def export_dynamic() -> None:
    """Export the programs that every backend is tried on, with dynamic sizes."""
    for program in (*PROGRAMS, *SIZED):
        program.batched and program.exported_dynamic  # noqa: B018 - kept by the program


DYNAMIC = Series(
    f"{__name__}:DYNAMIC",
    lambda backend: (
        p for p in (*backend.programs, *SIZED) if p.batched or p.name == "example"
    ),
    try_dynamic,
    export=export_dynamic,
)


def _varying_sizes(program: Program) -> list[Any]:
    """Return the symbolic sizes of inputs, without those that export made constant."""
    values = (
        [n.meta.get("val") for n in user_inputs(program.exported_dynamic[0])]
        if program.exported_dynamic
        else []
    )
    sizes: list[Any] = [
        d for v in values if isinstance(v, torch.Tensor) for d in v.shape
    ]
    sizes = [d for d in sizes if isinstance(d, torch.SymInt)]
    return [d for d in sizes if d.node.maybe_as_int() is None]


def _fixed(sizes: list[Any]) -> str | None:
    """Return an error if lowering made a dynamic size of the caller's program constant."""
    fixed = [d for d in sizes if d.node.maybe_as_int() is not None]
    return (
        f"lowering fixed a dynamic size of the caller's program to {fixed[0]}"
        if fixed
        else None
    )


def _wrong_at_sizes(one: LoweringAttempt, backend: ConfiguredBackend) -> str | None:
    """Describe how a delegate fails at the size of the example or at others."""
    if not is_comparable(one, backend):
        return None
    for size in one.program.borders if one.program.batched else (3,):
        with quiet():
            _, inputs = one.program.make(size)
        _, fault = compare_with_eager(replace(one, inputs=inputs), backend)
        if fault is not None:
            return f"called with N = {size}: {fault.text}"
    return None


def _as_dynamic(program: Program) -> Program:
    """Return the program with the lines that export it dynamically."""
    has_range = program.borders != AUTO_SIZES
    size = (
        f"torch.export.Dim('n', min={LEAST}, max={MOST})"
        if has_range
        else "torch.export.Dim.AUTO"
    )
    lines = [
        f"n = {size}  # for every first dimension",
        "sizes = [{0: n} if x.dim() else None for x in inputs]",
        "model = torch.export.export(model, tuple(inputs), dynamic_shapes=sizes)",
    ]
    return replace(
        program, source="\n".join(["import torch", program.source.rstrip(), *lines])
    )
