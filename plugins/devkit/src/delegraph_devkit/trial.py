"""Try one program on one backend, and find the cause of a fault.

Accepted calls must compile and compute the same as eager PyTorch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import delegraph
from delegraph import Verification
from delegraph.command import provided
from delegraph.errors import (
    ContractViolation,
    NoRuntime,
    PluginUnavailable,
    Unsupported,
)
from delegraph_programs import operator_name, written_targets
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from .configured_backend import ConfiguredBackend
from .delegate_calls import inputs_in_c_order, same_values, written_inputs
from .lowering_attempt import LoweringAttempt, Phase, is_random, quiet
from .program_text import other_inputs
from .programs import Program
from .tolerance import element_types, is_rounding_error, tolerance_of


class Kind(StrEnum):
    """A kind of fault; the value is the advice."""

    PARTITIONER = (
        "a partitioner gets every operator, with any arguments: refuse unknown calls"
        " with a reason"
    )
    PREPROCESS = (
        "call one support check from the partitioner and from the compiler, so that"
        " they agree"
    )
    NO_REASON = "why_not returns a sentence for users, or None for an accepted call"
    CRASH = (
        "the process ended inside the backend: debug its native code with"
        " PYTHONFAULTHANDLER=1 or gdb"
    )
    HANG = (
        "find the place where the backend waits or loops; refuse calls that take this"
        " long in the partitioner"
    )
    ESCAPED = (
        "find the first line of the traceback in your own code; if there is none,"
        " report a defect of delegraph-devkit"
    )
    RUNTIME = (
        "refuse calls that the runtime cannot run in the partitioner; the first line"
        " has the runtime's error"
    )
    NO_RUNTIME = (
        "this host cannot run the delegate: check the backend on a host that can"
    )
    OUTPUTS = (
        "return all outputs of the compiled part, in its order, with the dtypes and"
        " shapes that it records"
    )
    NOT_FINITE = (
        "compute NaN and infinity as eager does, also in comparisons, or refuse the"
        " operator"
    )
    INTEGERS = (
        "compute integers in their own width and wrap around as eager does, or refuse"
        " their element type"
    )
    DIFFERENT = (
        "try its operators one at a time, with --operator NAME; check order and layout"
        " of operands and outputs. Only a device that computes in fewer bits needs a"
        " wider tolerance: --tolerance, or that attribute of the contract"
    )
    LAYOUT = (
        "the results are right for inputs in C order: read each input with its strides,"
        " or copy it with contiguous() first"
    )
    WRITTEN = (
        "compute into new tensors: inputs belong to the caller, and later operators of"
        " the host may read them"
    )
    ALIASED = (
        "return new tensors from every call: copy results out of buffers of the runtime"
    )
    EMPTY = (
        "a partitioner also gets programs without calls, and outputs that are inputs or"
        " constants"
    )
    SUBGRAPHS = (
        "a partitioner also gets calls of higher-order operators, such as cond, and"
        " their subgraphs one by one"
    )
    SIZES = (
        "refuse symbolic sizes in the partitioner (test isinstance(size, int) first),"
        " or compile for every size"
    )


FATAL = (Kind.CRASH, Kind.HANG, Kind.ESCAPED)
COMPILE_FAULTS = (Kind.PARTITIONER, Kind.PREPROCESS, Kind.NO_REASON, *FATAL)
"""The kinds of faults that the check accepted_compiles reports.

The check numerics reports the others.
"""


@dataclass(frozen=True)
class Fault:
    """A fault of a program, in words."""

    kind: Kind
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Outcome:
    """The result of trying a program.

    ``reached``: the partitioner got its calls. ``accepted``: the operator of each
    delegated call. ``refused``: operator and reason of each refused call. ``compared``:
    the results were compared with eager PyTorch, with the relative ``error``.
    ``excuse``: the reason why a difference is declared, or not the backend's fault.
    """

    program: str
    reached: bool = False
    accepted: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    compared: bool = False
    error: float = 0.0
    faults: tuple[Fault, ...] = ()
    excuse: str = ""

    @property
    def fatal(self) -> bool:
        """Return whether the program ended the process that tried it."""
        return any(f.kind in FATAL for f in self.faults)


def try_program(program: Program, backend: ConfiguredBackend) -> list[Outcome]:
    """Return the outcome of a program, or of its members if one of them has the fault."""
    whole = _try(program, backend)
    if whole.faults or whole.excuse:
        members = [_try(m, backend) for m in program.members]
        if any(m.faults or m.excuse for m in members):
            return members
    return [whole]


def _try(program: Program, backend: ConfiguredBackend) -> Outcome:
    """Lower a program, compare its results with eager, and find the cause of a fault."""
    attempt = backend.attempt(program)
    if attempt is None or attempt.phase in (Phase.ENGINE, Phase.CONTRACT):
        return Outcome(program.name)  # not the backend's fault, or for another check
    if not attempt.calls and attempt.recording is not None:
        return Outcome(program.name)
    fault = partitioning_fault(attempt)
    faults = () if fault is None else (fault,)
    if attempt.lowered is None:
        return Outcome(program.name, reached=True, faults=faults)

    refused = [
        (operator_name(node), str(why)) for node, why in attempt.refusals.items()
    ]
    outcome = Outcome(
        program.name,
        reached=True,
        accepted=attempt.delegated_operators,
        refused=tuple(refused),
        faults=faults,
    )
    if not attempt.lowered.delegates or not is_comparable(attempt, backend):
        return outcome

    with written_inputs(backend) as written:
        error, fault = compare_with_eager(attempt, backend)
    if written:
        fault = Fault(Kind.WRITTEN, f"a delegate changed its input {written[0]}")
    # a device's runtime copies results, and passes inputs in C order
    elif not backend.device and fault is None:
        fault = aliasing_fault(attempt)
    elif not backend.device and fault is not None:
        fault = with_cause(fault, attempt, backend)
    if fault is None:
        return replace(outcome, compared=True, error=error)
    excuse = blame_others(attempt, backend) or _declared_difference(attempt, backend)
    if excuse is not None:
        return replace(outcome, compared=True, excuse=excuse)
    return replace(outcome, compared=True, faults=(*faults, fault))


def partitioning_fault(attempt: LoweringAttempt) -> Fault | None:
    """Return the fault if an accepted call does not compile, or a refused one has no
    reason.
    """
    if attempt.phase is Phase.PARTITION:
        return Fault(Kind.PARTITIONER, f"the partitioner raised {attempt.failed}")
    if attempt.phase is Phase.COMPILE:
        return Fault(
            Kind.PREPROCESS,
            f"the partitioner accepted it, but preprocess raised {attempt.failed}",
        )
    if attempt.lowered is None:
        return None
    reasons = {n.meta.get("debug_handle"): why for n, why in attempt.refusals.items()}
    for node in attempt.host_calls:
        why = reasons.get(node.meta.get("debug_handle"))
        has_reason = isinstance(why, str) and why.strip()
        if has_reason or operator_name(node) == "getitem":
            continue
        given = "no reason" if why is None else f"the reason {why!r}"
        return Fault(
            Kind.NO_REASON,
            f"the partitioner refused {operator_name(node)} with {given}",
        )
    return None


def compare_with_eager(
    attempt: LoweringAttempt, backend: ConfiguredBackend
) -> tuple[float, Fault | None]:
    """Return the largest relative error, and the fault if it is too large.

    A failing runtime is a fault, too. If an output of eager PyTorch is a rounding error
    itself, an error of its size is accepted.
    """
    assert attempt.lowered is not None
    try:
        with quiet():
            found = attempt.lowered.verify(*attempt.inputs, runtime=backend.where)
    except (Exception, SystemExit) as e:
        return 0.0, _runtime_fault(e)
    limit = tolerance_of(attempt.exported, backend.tolerance)
    if found.relative_error > limit:
        found = _accept_ties(found, attempt, backend)
    if found.relative_error <= limit:
        return found.relative_error, None
    with quiet():
        if is_rounding_error(found, limit, attempt.exported, attempt.inputs):
            return 0.0, None
    text = (
        f"the results differ from eager by more than {limit:g}, with a largest relative"
        f" error of {found.relative_error:.3g}; {found}"
    )
    return found.relative_error, Fault(_kind(found, attempt.exported), text)


def _accept_ties(
    found: Verification, attempt: LoweringAttempt, backend: ConfiguredBackend
) -> Verification:
    """Compare again, and accept other rounding and another order of equal elements.

    Without delegraph-analysis, the result is ``found``.
    """
    assert attempt.lowered is not None
    try:
        verify_ties = provided("delegraph_analysis:verify_ties", "accepting ties")
    except PluginUnavailable:
        return found
    try:
        with quiet():
            again: Verification = verify_ties(
                attempt.lowered, *attempt.inputs, runtime=backend.where
            )
    except (Exception, SystemExit):  # the runtime failed at this call only
        return found
    return again


def _runtime_fault(error: BaseException) -> Fault:
    """Return the fault for an error of the runtime."""
    kind = Kind.RUNTIME
    if isinstance(error, NoRuntime):
        kind = Kind.NO_RUNTIME
    elif isinstance(error, ContractViolation):
        kind = Kind.OUTPUTS
    return Fault(kind, f"the runtime raised {type(error).__name__}: {error}")


def _kind(found: Verification, program: ExportedProgram) -> Kind:
    """Return the kind of a difference from eager."""
    if not any(d.is_floating_point for d in element_types(program)):
        return Kind.INTEGERS
    if any(output.mismatched for output in found.outputs):
        return Kind.NOT_FINITE
    return Kind.DIFFERENT


def with_cause(
    fault: Fault, attempt: LoweringAttempt, backend: ConfiguredBackend
) -> Fault:
    """Return the fault, with the kind LAYOUT if inputs in C order give right results."""
    if fault.kind is not Kind.DIFFERENT:
        return fault
    # lower again: a delegate is loaded only once
    again = backend.attempt(attempt.program)
    if again is None or again.lowered is None:
        return fault
    with inputs_in_c_order(backend):
        _, fault_in_c_order = compare_with_eager(again, backend)
    if fault_in_c_order is not None:
        return fault
    return replace(fault, kind=Kind.LAYOUT)


def aliasing_fault(attempt: LoweringAttempt) -> Fault | None:
    """Return a fault if the next call changes the results of the previous one."""
    assert attempt.lowered is not None
    if written_targets(attempt.exported):
        return None  # a program may return its state, which changes
    with quiet():
        try:
            first = pytree.tree_leaves(attempt.lowered(*copy.deepcopy(attempt.inputs)))
        except (Exception, SystemExit) as e:
            # the first call, in verify, did not raise
            return _runtime_fault(e)
        before = copy.deepcopy(first)
        try:
            attempt.lowered(*other_inputs(copy.deepcopy(attempt.inputs)))
        except (Exception, SystemExit):
            # the operator refuses these values; compare_with_eager reports errors
            return None
    for k, (a, b) in enumerate(zip(first, before, strict=True)):
        if not same_values(a, b):
            return Fault(
                Kind.ALIASED,
                f"output {k} of the first call changed when the program was called"
                " again",
            )
    return None


def blame_others(attempt: LoweringAttempt, backend: ConfiguredBackend) -> str | None:
    """Return another cause of a difference than the backend; None if there is none.

    Causes are torch's export, delegraph, and kernels of the device's runtime.
    """

    def exported() -> Any:
        return copy.deepcopy(attempt.exported).module(check_guards=False)

    def without_backend() -> Any:
        registry = delegraph.Registry(discover=False)
        return delegraph.lower(attempt.exported, backends=[], registry=registry)

    def in_kernels() -> Any:
        lowered = delegraph.lower(
            attempt.exported, backends=[], registry=backend.registry
        )
        with backend.saved(lowered) as path:
            return delegraph.load(path, backend.registry, runtime=backend.where)

    suspects: dict[str, Callable[[], Any]] = {
        "torch: the exported program": exported,
        "delegraph: the program without any backend": without_backend,
    }
    if backend.device:
        suspects[f"{backend.where}: the program in its own kernels"] = in_kernels
    limit = tolerance_of(attempt.exported, backend.tolerance)
    with quiet():
        try:
            wanted = _run_module(attempt)
        except Exception as e:  # no backend took part
            return f"torch: eager itself raises {type(e).__name__}"
        for suspect, make in suspects.items():
            try:
                found = Verification.of(make()(*copy.deepcopy(attempt.inputs)), wanted)
            except Exception as e:  # the backend did not take part
                # without kernels for the program, the runtime cannot be compared
                if make is in_kernels and isinstance(e, Unsupported):
                    continue
                return f"{suspect} raises {type(e).__name__}: {e!s:.100}"
            if found.relative_error > limit:
                return f"{suspect} computes other results than the module"
    return None


def _run_module(attempt: LoweringAttempt) -> Any:
    """Return the results of the original module."""
    model: Any = attempt.program.make(3)[0]
    if isinstance(model, ExportedProgram):
        model = model.module(check_guards=False)
    return model(*copy.deepcopy(attempt.inputs))


def _declared_difference(
    attempt: LoweringAttempt, backend: ConfiguredBackend
) -> str | None:
    """Return a declared difference of a delegated operator; None if there is none.

    Declarations apply to programs with special values only.
    """
    if not attempt.program.special:
        return None
    known = {}
    traits = backend.registry.spec(backend.name).traits
    for operators, text in traits.known_differences:
        for operator in operators.split():
            known[operator] = text
    for operator in attempt.delegated_operators:
        if operator in known:
            return f"declared: {operator} {known[operator]}"
    return None


def is_comparable(attempt: LoweringAttempt, backend: ConfiguredBackend) -> bool:
    """Return whether a runtime exists, and the inputs determine real results."""
    if backend.runtime is None or is_random(attempt.exported):
        return False
    if any(dtype.is_complex for dtype in element_types(attempt.exported)):
        return False
    return not backend.device or _fits_file(attempt, backend)


def _fits_file(attempt: LoweringAttempt, backend: ConfiguredBackend) -> bool:
    """Return whether a program file can hold the host's calls.

    If it cannot, the backend is not at fault.
    """
    assert attempt.lowered is not None
    try:
        with quiet(), backend.saved(attempt.lowered):
            return True
    except Unsupported:
        return False
