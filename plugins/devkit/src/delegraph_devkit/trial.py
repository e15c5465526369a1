"""One program on one backend: does what is accepted compile, and compute what eager computes? If not, who is to blame?

``try_one`` answers that in this process, ``try_all`` in another, for one program after the other.
"""

from __future__ import annotations

import copy
import itertools
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from delegraph.api import lower
from delegraph.discovery.registry import Registry
from delegraph.exported_program import written_targets
from delegraph.program.verify import Verification, compare
from delegraph.report.collect import host_calls, operator_name
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from .lowering_attempt import Attempt, Phase, quiet, random_calls
from .opinfo import operator_programs
from .programs import RELAID, Program
from .random_programs import random_program
from .reproduce import other_inputs
from .special_values import SPECIAL
from .tolerance import is_noise

if TYPE_CHECKING:
    from .backend_under_test import Recipe, Subject

CPU_SECONDS = 60.0
"""CPU time that one program may take in another process: a hang, whatever else the machine does."""
_FIXED = frozenset((*SPECIAL, *RELAID))


class Kind(str, Enum):
    """How a program goes wrong; the value is the advice."""

    PARTITIONER = "a partitioner meets every operator, with any arguments: refuse what it does not know, with a reason"
    PREPROCESS = "let the partitioner ask the code that compiles: one check, used by both, cannot disagree with itself"
    NO_REASON = "why_not returns a sentence for people, or None for what is accepted"
    CRASH = "the process ended while the backend was at work: look at its native code, with PYTHONFAULTHANDLER=1 or gdb"
    HANG = "look where the backend waits or loops; refuse in the partitioner what takes this long"
    RUNTIME = "refuse in the partitioner what the runtime cannot run; its error is the first line"
    NOT_FINITE = "let NaN and infinity through as eager does (compare so that NaN wins), or refuse the operator"
    INTEGERS = "compute integers in their own width and wrap around as eager does, or refuse their element type"
    DIFFERENT = "a wider tolerance is an attribute of the contract, for a device that computes in fewer bits"
    ALIASED = "return tensors of your own with every call: copy what lies in a buffer of the runtime"


UNCOMPILED = (Kind.PARTITIONER, Kind.PREPROCESS, Kind.NO_REASON, Kind.CRASH, Kind.HANG)
"""What accepted_compiles is about; the others are of numerics."""
FATAL = (Kind.CRASH, Kind.HANG)


@dataclass(frozen=True)
class Fault:
    """How a program goes wrong, in words."""

    kind: Kind
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Outcome:
    """What came of a program. ``reached`` means that the partitioner was asked about its calls.

    ``excuse`` says why a difference from eager is not the backend's fault, or that it is declared.
    """

    program: str
    reached: bool = False
    accepted: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    compared: bool = False
    error: float = 0.0
    faults: tuple[Fault, ...] = ()
    excuse: str = ""


# --- what is tried


def programs(subject: Subject, part: str) -> Iterator[Program]:
    """The programs of a part: the "samples", the rest of the "gate", or "more" for as long as there is time."""
    if part == "samples":
        return iter(subject.programs)
    if subject.operators:
        return operator_programs(subject.operators) if part == "gate" else iter(())
    stream = _mixed()
    if part == "more":
        return itertools.islice(stream, subject.gate, None)
    return itertools.chain(SPECIAL, RELAID, itertools.islice(stream, subject.gate) if subject.gate else ())


def _mixed() -> Iterator[Program]:
    """Five operators, then a random program, and so on; the order never changes."""
    seeds, operators = itertools.count(1000), operator_programs()
    while batch := list(itertools.islice(operators, 5)):
        yield from batch
        yield random_program(next(seeds))


def prepare() -> None:
    """Export what does not change once, for all processes that are forked from this one."""
    for program in _FIXED:
        program.kept()
    next(operator_programs())


def try_all(
    recipe: Recipe, part: str, start: int, inside: bool, seconds: float | None, progress: Callable[[str], None]
) -> Iterator[list[Outcome]]:
    """Run in another process: the programs of a part from number ``start`` on; ``inside``: the members of that one."""
    subject = recipe.subject()
    stream = itertools.islice(programs(subject, part), start, None)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # its default action ends the process, also inside C code
    deadline = None if seconds is None else time.monotonic() + seconds
    for program in next(stream).members if inside else stream:
        if deadline is not None and time.monotonic() > deadline:
            return
        progress(program.name)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        yield try_one(program, subject)


# --- one of them


def try_one(program: Program, subject: Subject) -> list[Outcome]:
    """The outcome of a program; if it has members and something is wrong, those of its members."""
    whole = _outcome(program, subject)
    if whole.faults or whole.excuse:
        members = [_outcome(m, subject) for m in program.members]
        if any(m.faults or m.excuse for m in members):
            return members
    return [whole]


def _outcome(program: Program, subject: Subject) -> Outcome:
    fixed = program in _FIXED or program in subject.programs
    one = subject.attempt(program, program.kept() if fixed else program.exported())
    if one is None or one.phase in (Phase.ENGINE, Phase.CONTRACT) or not one.calls:
        return Outcome(program.name)  # not the backend's, or for another check
    missing = unexplained(one)
    found: dict[str, Any] = {"reached": True, "faults": () if missing is None else (missing,)}
    if one.lowered is None:
        return Outcome(program.name, **found)
    accepted = tuple(operator_name(n) for d in one.lowered.delegates for n in d.nodes)
    refused = tuple((operator_name(n), str(why)) for n, why in one.refusals.items())
    found.update(accepted=accepted, refused=refused)
    if subject.runtime is None or not one.lowered.delegates or not comparable(one.exported):
        return Outcome(program.name, **found)
    error, fault = disagreement(one, subject)
    fault = fault or aliased(one)
    excuse = (other_party(one, subject) or _declared(one, subject)) if fault is not None else None
    if fault is not None and excuse is None:
        found["faults"] = (*found["faults"], fault)
    return Outcome(program.name, **found, compared=True, error=0.0 if fault else error, excuse=excuse or "")


def unexplained(one: Attempt) -> Fault | None:
    """How the attempt breaks the rule that what is accepted compiles and what is refused has a reason."""
    if one.phase is Phase.PARTITION:
        return Fault(Kind.PARTITIONER, f"the partitioner raised {one.failed}")
    if one.phase is Phase.COMPILE:
        return Fault(Kind.PREPROCESS, f"the partitioner accepted it, and then preprocess raised {one.failed}")
    if one.lowered is None:
        return None
    reasons = {n.meta.get("debug_handle"): why for n, why in one.refusals.items()}
    for node in host_calls(one.lowered.exported_program().graph.nodes):
        why = reasons.get(node.meta.get("debug_handle"))
        if operator_name(node) != "getitem" and not (isinstance(why, str) and why.strip()):
            given = "no reason" if why is None else f"the reason {why!r}"
            return Fault(Kind.NO_REASON, f"{operator_name(node)} was left to the host with {given}")
    return None


def disagreement(one: Attempt, subject: Subject) -> tuple[float, Fault | None]:
    """The largest relative error, and what is wrong if it is beyond the tolerance or the runtime fails.

    Outputs of eager that are rounding errors are not compared any closer than they are large.
    """
    assert one.lowered is not None
    try:
        with quiet():
            found = one.lowered.verify(*one.inputs)
    except (Exception, SystemExit) as e:
        return 0.0, Fault(Kind.RUNTIME, f"the runtime raised {type(e).__name__}: {e}")
    limit = tolerance(one.exported, subject.tolerance)
    if found.relative_error <= limit:
        return found.relative_error, None
    with quiet():
        if is_noise(found, limit, one.exported, one.inputs):
            return 0.0, None
    return found.relative_error, Fault(
        _kind(found, one.exported), f"the results differ from eager by more than {limit:g}; {found}"
    )


def _kind(found: Verification, program: ExportedProgram) -> Kind:
    if not any(d.is_floating_point for d in _dtypes(program)):
        return Kind.INTEGERS
    return Kind.NOT_FINITE if any(o.mismatched for o in found.outputs) else Kind.DIFFERENT


def aliased(one: Attempt) -> Fault | None:
    """Whether the results of one call change with the next, which the caller sees who keeps them."""
    assert one.lowered is not None
    if written_targets(one.exported):
        return None  # it may return its state itself, which is to change
    with quiet():
        first = pytree.tree_leaves(one.lowered(*copy.deepcopy(one.inputs)))
        before = copy.deepcopy(first)
        try:
            one.lowered(*other_inputs(copy.deepcopy(one.inputs)))
        except (Exception, SystemExit):  # values that the operator does not take; disagreement is about errors
            return None
    for k, (a, b) in enumerate(zip(first, before, strict=True)):
        if isinstance(a, torch.Tensor) and not bool(((a == b) | ((a != a) & (b != b))).all()):
            return Fault(Kind.ALIASED, f"output {k} of the first call changed when the program was called again")
    return None


def other_party(one: Attempt, subject: Subject) -> str | None:
    """Whose fault it is if not the backend's: torch's export, or delegraph's own work; None if neither is wrong."""
    inputs, limit = one.inputs, tolerance(one.exported, subject.tolerance)
    with quiet():
        try:
            wanted = one.program.make(3)[0](*copy.deepcopy(inputs))
        except Exception as e:
            return f"torch: eager itself raises {type(e).__name__}"
        for whose, run in (
            ("torch: the exported program", lambda: copy.deepcopy(one.exported).module(check_guards=False)),
            ("delegraph: the program without any backend", lambda: _without_backend(one.exported)),
        ):
            try:
                found = compare(run()(*copy.deepcopy(inputs)), wanted)
            except Exception as e:
                return f"{whose} raises {type(e).__name__}: {e!s:.100}"
            if found.relative_error > limit:
                return f"{whose} computes something else than the module"
    return None


def _without_backend(program: ExportedProgram) -> Any:
    return lower(program, backends=[], registry=Registry(discover=False))


def _declared(one: Attempt, subject: Subject) -> str | None:
    """What the backend declares of the operators that it took, if this is about unusual values."""
    known = dict(subject.registry.spec(subject.backend).known_differences) if one.program.special else {}
    taken = [operator_name(n) for d in one.lowered.delegates for n in d.nodes] if one.lowered else []
    return next((f"declared: {o} {known[o]}" for o in taken if o in known), None)


def comparable(program: ExportedProgram) -> bool:
    """Whether results are determined by the inputs, and real."""
    return not random_calls(program) and not any(d.is_complex for d in _dtypes(program))


def tolerance(program: ExportedProgram, basis: float) -> float:
    """``basis``, or four units of the coarsest element type that the program computes in; none for integers alone."""
    floats = [d for d in _dtypes(program) if d.is_floating_point]
    return max([basis, *(4 * torch.finfo(d).eps for d in floats)]) if floats else 0.0


def _dtypes(program: ExportedProgram) -> set[torch.dtype]:
    values = (n.meta.get("val") for n in program.graph.nodes)
    listed = (v for val in values for v in (val if isinstance(val, (list, tuple)) else [val]))
    return {v.dtype for v in listed if isinstance(v, torch.Tensor)}
