"""Many small programs in a bounded time: what the backend accepts compiles, and computes what eager computes."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from ..report import host_calls, operator_name
from .attempt import Attempt, Phase, quiet, random_calls
from .noise import is_noise
from .opinfo import operator_programs
from .programs import Program
from .random_programs import random_program

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from .subject import Subject


@dataclass
class Violation:
    """A program on which a rule does not hold, and how."""

    program: Program
    text: str

    def __str__(self) -> str:
        return f"{self.program.name}: {self.text.partition(chr(10))[0]}"


@dataclass
class Sweep:
    """What was tried and what came of it."""

    programs: int = 0
    compared: int = 0
    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    uncompiled: list[Violation] = field(default_factory=list)
    different: list[Violation] = field(default_factory=list)
    largest_error: float = 0.0
    seconds: float = 0.0


def run(subject: Subject) -> Sweep:
    """The samples first, then operators and random programs until the subject's seconds are over."""
    sweep, start = Sweep(), time.monotonic()
    for one in subject.samples:
        _look(one, subject, sweep)
    for program in _until(start + subject.seconds):
        tried = subject.attempt(program, program.exported())
        if tried is not None:
            _look(tried, subject, sweep)
    sweep.seconds = time.monotonic() - start
    return sweep


def _until(deadline: float) -> Iterator[Program]:
    """Programs while there is time; OpInfo is not even loaded if there is none."""
    stream = _stream()
    while time.monotonic() < deadline and (program := next(stream, None)) is not None:
        yield program


def _stream() -> Iterator[Program]:
    """Five operators, then a random program, and so on; the order never changes."""
    seeds, operators = itertools.count(1000), operator_programs()
    while batch := list(itertools.islice(operators, 5)):
        yield from batch
        yield random_program(next(seeds))


def _look(one: Attempt, subject: Subject, sweep: Sweep) -> None:
    if one.phase in (Phase.ENGINE, Phase.CONTRACT) or not one.calls:  # not the backend's, or for another check
        return
    sweep.programs += 1
    why = unexplained(one)
    if why is not None:
        sweep.uncompiled.append(Violation(one.program, why))
    if one.lowered is not None:
        for delegate in one.lowered.delegates:
            sweep.accepted.update(operator_name(n) for n in delegate.nodes)
        sweep.refused.update(operator_name(n) for n in one.refusals)
        _compare(one, subject, sweep)


def unexplained(one: Attempt) -> str | None:
    """How the attempt breaks the rule that what is accepted compiles and what is refused has a reason."""
    if one.phase is Phase.PARTITION:
        return f"the partitioner raised {one.failed}"
    if one.phase is Phase.COMPILE:
        return f"the partitioner accepted it, and then preprocess raised {one.failed}"
    if one.lowered is None:
        return None
    reasons = {n.meta.get("debug_handle"): why for n, why in one.refusals.items()}
    for node in host_calls(one.lowered.exported_program().graph.nodes):
        why = reasons.get(node.meta.get("debug_handle"))
        if operator_name(node) != "getitem" and not (isinstance(why, str) and why.strip()):
            given = "no reason" if why is None else f"the reason {why!r}"
            return f"{operator_name(node)} was left to the host with {given}"
    return None


def _compare(one: Attempt, subject: Subject, sweep: Sweep) -> None:
    if subject.runtime is None or one.lowered is None or not one.lowered.delegates or not comparable(one.exported):
        return
    sweep.compared += 1
    error, text = disagreement(one, subject)
    if text is not None:
        sweep.different.append(Violation(one.program, text))
    else:
        sweep.largest_error = max(sweep.largest_error, error)


def disagreement(one: Attempt, subject: Subject) -> tuple[float, str | None]:
    """The largest relative error, and what is wrong if it is beyond the tolerance or the runtime fails.

    Outputs of eager that are rounding errors are not compared any closer than they are large.
    """
    assert one.lowered is not None
    try:
        with quiet():
            found = one.lowered.verify(*one.inputs)
    except (Exception, SystemExit) as e:
        return 0.0, f"the runtime raised {type(e).__name__}: {e}"
    limit = tolerance(one.exported, subject.tolerance)
    if found.relative_error <= limit:
        return found.relative_error, None
    with quiet():
        if is_noise(found, limit, one.exported, one.inputs):
            return 0.0, None
    return found.relative_error, f"the results differ from eager by more than {limit:g}; {found}"


def comparable(program: ExportedProgram) -> bool:
    """Whether results are determined by the inputs, and real."""
    return not random_calls(program) and not any(d.is_complex for d in _dtypes(program))


def tolerance(program: ExportedProgram, basis: float) -> float:
    """``basis``, or four units of the coarsest element type that the program computes in."""
    return max([basis, *(4 * torch.finfo(d).eps for d in _dtypes(program) if d.is_floating_point)])


def _dtypes(program: ExportedProgram) -> set[torch.dtype]:
    values = (n.meta.get("val") for n in program.graph.nodes)
    listed = (v for val in values for v in (val if isinstance(val, (list, tuple)) else [val]))
    return {v.dtype for v in listed if isinstance(v, torch.Tensor)}
