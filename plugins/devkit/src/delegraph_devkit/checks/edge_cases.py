"""Programs of unusual form: nothing to delegate, branches and loops, shapes that are known at run time only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from delegraph.backend import CompileSpec
from delegraph.engine.functionalize.normalize import normalize
from delegraph.errors import DelegraphError
from delegraph.exported_program import user_inputs

from ..backend_under_test import Subject
from ..check import Figures, check
from ..control_flow import CONTROL_FLOW
from ..lowering_attempt import Attempt, Phase, quiet
from ..outcomes import CheckFailed, CheckSkipped
from ..programs import NOTHING, Program
from ..trial import comparable, disagreement, unexplained


@check
def empty_programs(subject: Subject) -> Figures:
    """A program with nothing to delegate, or that only returns its input, passes through and computes the same."""
    advice = "expect partitioners to be given no call at all, and outputs that are inputs or constants"
    for program in NOTHING:
        one = subject.attempt(program, program.kept())
        if one is not None and one.phase is not Phase.ENGINE:
            why = _wrong(one, subject)
            if why is not None:
                raise CheckFailed(why, program, advice)
    _whole(subject, NOTHING[0])
    return {"programs": len(NOTHING) + 1}


def _wrong(one: Attempt, subject: Subject) -> str | None:
    if one.lowered is None:
        return f"lowering failed: {one.failed}"
    _, fault = disagreement(one, subject)
    return None if fault is None else fault.text


def _whole(subject: Subject, program: Program) -> None:
    """``to_backend(backend_id, program)`` with a program without calls: a blob, or an error of delegraph.errors."""
    made = program.kept()
    if made is None:
        return
    normal, _ = normalize(made[0])
    backend = subject.registry.get_backend(subject.backend)
    try:
        backend.preprocess(normal, list(_settings(subject)))
    except DelegraphError:
        return
    except (Exception, SystemExit) as e:
        text = f"preprocess of a program without calls raised {type(e).__name__}: {e}"
        raise CheckFailed(text, program, "compile it, or raise delegraph.errors.Unsupported") from e


def _settings(subject: Subject) -> tuple[CompileSpec, ...]:
    """The compile specs that the partitioner gives a partition."""
    results = (one.recording.result for one in subject.samples)
    found = (spec.compile_specs for r in results if r is not None for spec in r.partition_tags.values())
    return next(found, ())


@check
def control_flow(subject: Subject) -> Figures:
    """Branches and loops are lowered, parts of their bodies too, and compute the same whichever way they go."""
    advice = "expect calls of higher-order operators, such as cond, and to be asked about their bodies one by one"
    delegates = 0
    for program in CONTROL_FLOW:
        one = subject.attempt(program, program.kept())
        if one is None or one.phase is Phase.ENGINE:
            continue
        other = replace(one, inputs=tuple(-i for i in one.inputs))
        why = _wrong(one, subject) or _wrong(other, subject)
        if why is not None:
            raise CheckFailed(why, program, advice)
        delegates += len(one.lowered.delegates) if one.lowered else 0
    return {"programs": len(CONTROL_FLOW), "delegates": delegates}


@check
def dynamic_shapes(subject: Subject) -> Figures:
    """Programs whose first dimensions are dynamic are handled, at other sizes too, or refused with a reason."""
    tried = taken = 0
    for program in (p for p in subject.programs if p.batched or p.name == "example"):
        one = subject.attempt(program, program.exported(dynamic=True))
        if one is None or one.phase is Phase.ENGINE or not _dynamic(one):
            continue
        tried += 1
        taken += bool(one.lowered and one.lowered.delegates)
        why = f"lowering failed: {one.failed}" if one.lowered is None else _left(one) or _fixed(one)
        why = why or _at_sizes(one, subject)
        if why is not None:
            advice = (
                "refuse symbolic sizes in the partitioner (ask isinstance(size, int) first), or compile for every size"
            )
            raise CheckFailed(why, _as_dynamic(program), advice)
    if not tried:
        raise CheckSkipped("no sample program could be exported with dynamic shapes")
    return {"programs": tried, "delegated_in_part": taken}


def _left(one: Attempt) -> str | None:
    fault = unexplained(one)
    return None if fault is None else fault.text


def _dynamic(one: Attempt) -> bool:
    values = (n.meta.get("val") for n in user_inputs(one.exported))
    return any(isinstance(d, torch.SymInt) for v in values if isinstance(v, torch.Tensor) for d in v.shape)


def _fixed(one: Attempt) -> str | None:
    """Reading a symbolic size as a number makes it that number, in the caller's program too."""
    values = [n.meta.get("val") for n in user_inputs(one.exported)]
    sizes: list[Any] = [
        d for v in values if isinstance(v, torch.Tensor) for d in v.shape if isinstance(d, torch.SymInt)
    ]
    found = [d for d in sizes if d.node.maybe_as_int() is not None]
    return f"lowering fixed a dynamic size of the caller's program to {found[0]}" if found else None


def _at_sizes(one: Attempt, subject: Subject) -> str | None:
    """How a delegate fails at the size of the example or at others."""
    if one.lowered is None or subject.runtime is None or not comparable(one.exported):
        return None
    for size in (3, 2, 5) if one.program.batched else (3,):
        with quiet():
            _, inputs = one.program.make(size)
        _, fault = disagreement(replace(one, inputs=inputs), subject)
        if fault is not None:
            return f"called with N = {size}: {fault.text}"
    return None


def _as_dynamic(program: Program) -> Program:
    """The program with the lines that export it as it was tried."""
    lines = [
        "# exported with Dim.AUTO for every first dimension",
        "sizes = [{0: torch.export.Dim.AUTO} if x.dim() else None for x in inputs]",
        "model = torch.export.export(model, tuple(inputs), dynamic_shapes=sizes)",
    ]
    return replace(program, source="\n".join(["import torch", program.source.rstrip(), *lines]))
