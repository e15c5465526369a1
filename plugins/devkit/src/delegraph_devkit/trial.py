"""Try one program on one backend, and find out who is to blame for a fault.

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
        "a partitioner meets every operator, with any arguments: refuse what it does"
        " not know, with a reason"
    )
    PREPROCESS = (
        "let the partitioner ask the code that compiles: one check, used by both,"
        " cannot disagree with itself"
    )
    NO_REASON = "why_not returns a sentence for people, or None for what is accepted"
    CRASH = (
        "the process ended while the backend was at work: look at its native code, with"
        " PYTHONFAULTHANDLER=1 or gdb"
    )
    HANG = (
        "look where the backend waits or loops; refuse in the partitioner what takes"
        " this long"
    )
    ESCAPED = (
        "look for the first line of the traceback that is yours; if none is, report a"
        " defect of delegraph-devkit"
    )
    RUNTIME = (
        "refuse in the partitioner what the runtime cannot run; its error is the first"
        " line"
    )
    NO_RUNTIME = (
        "the runtime says that this host cannot run the delegate: check the backend"
        " where it can"
    )
    OUTPUTS = (
        "return all outputs of the part that was compiled, in its order, with the"
        " dtypes and shapes that it records"
    )
    NOT_FINITE = (
        "let NaN and infinity through as eager does (compare so that NaN wins), or"
        " refuse the operator"
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
        "its results are right once every input lies in C order: read an input with the"
        " strides that it has, or copy it with contiguous() first"
    )
    WRITTEN = (
        "compute into tensors of your own: inputs are the caller's, and what the host"
        " computes next may read them"
    )
    ALIASED = (
        "return tensors of your own with every call: copy what lies in a buffer of the"
        " runtime"
    )
    EMPTY = (
        "expect partitioners to be given no call at all, and outputs that are inputs or"
        " constants"
    )
    SUBGRAPHS = (
        "expect calls of higher-order operators, such as cond, and to be asked about"
        " their subgraphs one by one"
    )
    SIZES = (
        "refuse symbolic sizes in the partitioner (ask isinstance(size, int) first), or"
        " compile for every size"
    )


FATAL = (Kind.CRASH, Kind.HANG, Kind.ESCAPED)
UNCOMPILED = (Kind.PARTITIONER, Kind.PREPROCESS, Kind.NO_REASON, *FATAL)
"""The kinds that accepted_compiles reports; numerics reports the others."""


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

    ``reached``: the partitioner was asked about its calls. ``excuse``: the reason why a
    difference from eager PyTorch is declared, or not the backend's fault.
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
    one = backend.attempt(program)
    if (
        one is None
        or one.phase in (Phase.ENGINE, Phase.CONTRACT)
        or not (one.calls or one.recording is None)
    ):
        return Outcome(program.name)  # not the backend's, or for another check
    fault = partitioning_fault(one)
    faults = () if fault is None else (fault,)
    if one.lowered is None:
        return Outcome(program.name, True, faults=faults)
    outcome = Outcome(
        program.name,
        reached=True,
        accepted=tuple(
            operator_name(n) for d in one.lowered.delegates for n in d.nodes
        ),
        refused=tuple((operator_name(n), str(why)) for n, why in one.refusals.items()),
        faults=faults,
    )
    if not one.lowered.delegates or not is_comparable(one, backend):
        return outcome
    with written_inputs(backend) as written:
        error, fault = compare_with_eager(one, backend)
    if written:
        fault = Fault(
            Kind.WRITTEN,
            f"a delegate, called by its runtime, changed its input {written[0]}",
        )
    elif not backend.device:
        # whose runtime copies results, and hands inputs over in C order
        fault = (
            aliasing_fault(one) if fault is None else with_cause(fault, one, backend)
        )
    if fault is None:
        return replace(outcome, compared=True, error=error)
    excuse = blame_others(one, backend) or _declared_difference(one, backend)
    if excuse is not None:
        return replace(outcome, compared=True, excuse=excuse)
    return replace(outcome, compared=True, faults=(*faults, fault))


def partitioning_fault(one: LoweringAttempt) -> Fault | None:
    """Return the fault if an accepted call does not compile, or a refused one has no
    reason.
    """
    if one.phase is Phase.PARTITION:
        return Fault(Kind.PARTITIONER, f"the partitioner raised {one.failed}")
    if one.phase is Phase.COMPILE:
        return Fault(
            Kind.PREPROCESS,
            f"the partitioner accepted it, and then preprocess raised {one.failed}",
        )
    if one.lowered is None:
        return None
    reasons = {n.meta.get("debug_handle"): why for n, why in one.refusals.items()}
    for node in one.host_calls:
        why = reasons.get(node.meta.get("debug_handle"))
        if operator_name(node) != "getitem" and not (
            isinstance(why, str) and why.strip()
        ):
            given = "no reason" if why is None else f"the reason {why!r}"
            return Fault(
                Kind.NO_REASON,
                f"{operator_name(node)} was left to the host with {given}",
            )
    return None


def compare_with_eager(
    one: LoweringAttempt, backend: ConfiguredBackend
) -> tuple[float, Fault | None]:
    """Return the largest relative error, and the fault if it is too large.

    A failing runtime is a fault, too. If an output of eager PyTorch is a rounding error
    itself, an error of its size is accepted.
    """
    assert one.lowered is not None
    try:
        with quiet():
            found = one.lowered.verify(*one.inputs, runtime=backend.where)
    except (Exception, SystemExit) as e:
        return 0.0, _runtime_fault(e)
    limit = tolerance_of(one.exported, backend.tolerance)
    if found.relative_error > limit:
        found = _accept_ties(found, one, backend)
    if found.relative_error <= limit:
        return found.relative_error, None
    with quiet():
        if is_rounding_error(found, limit, one.exported, one.inputs):
            return 0.0, None
    beyond = f"the results differ from eager by more than {limit:g}"
    text = (
        f"{beyond}, with a largest relative error of {found.relative_error:.3g};"
        f" {found}"
    )
    return found.relative_error, Fault(_kind(found, one.exported), text)


def _accept_ties(
    found: Verification, one: LoweringAttempt, backend: ConfiguredBackend
) -> Verification:
    """Compare again, and accept results with other rounding, or equal elements
    reordered.

    Without delegraph-analysis, which does this, the result is ``found``.
    """
    assert one.lowered is not None
    try:
        verify_ties = provided("delegraph_analysis:verify_ties", "accepting ties")
    except PluginUnavailable:
        return found
    try:
        with quiet():
            again: Verification = verify_ties(
                one.lowered, *one.inputs, runtime=backend.where
            )
    except (Exception, SystemExit):  # the runtime failed at this call only
        return found
    return again


def _runtime_fault(error: BaseException) -> Fault:
    kind = Kind.OUTPUTS if isinstance(error, ContractViolation) else Kind.RUNTIME
    kind = Kind.NO_RUNTIME if isinstance(error, NoRuntime) else kind
    return Fault(kind, f"the runtime raised {type(error).__name__}: {error}")


def _kind(found: Verification, program: ExportedProgram) -> Kind:
    if not any(d.is_floating_point for d in element_types(program)):
        return Kind.INTEGERS
    return (
        Kind.NOT_FINITE if any(o.mismatched for o in found.outputs) else Kind.DIFFERENT
    )


def with_cause(fault: Fault, one: LoweringAttempt, backend: ConfiguredBackend) -> Fault:
    """Return the fault, as one of layout if results are right for inputs in C order."""
    # delegates are loaded once
    again = backend.attempt(one.program) if fault.kind is Kind.DIFFERENT else None
    if again is None or again.lowered is None:
        return fault
    with inputs_in_c_order(backend):
        _, left = compare_with_eager(again, backend)
    return fault if left is not None else replace(fault, kind=Kind.LAYOUT)


def aliasing_fault(one: LoweringAttempt) -> Fault | None:
    """Return a fault if the next call changes the results of the previous one.

    A caller that keeps results would see that.
    """
    assert one.lowered is not None
    if written_targets(one.exported):
        return None  # it may return its state itself, which is to change
    with quiet():
        try:
            first = pytree.tree_leaves(one.lowered(*copy.deepcopy(one.inputs)))
        except (Exception, SystemExit) as e:
            # at this call, and not when verify called it
            return _runtime_fault(e)
        before = copy.deepcopy(first)
        try:
            one.lowered(*other_inputs(copy.deepcopy(one.inputs)))
        except (Exception, SystemExit):
            # values that the operator does not take; compare_with_eager is about errors
            return None
    for k, (a, b) in enumerate(zip(first, before, strict=True)):
        if not same_values(a, b):
            return Fault(
                Kind.ALIASED,
                f"output {k} of the first call changed when the program was called"
                " again",
            )
    return None


def blame_others(one: LoweringAttempt, backend: ConfiguredBackend) -> str | None:
    """Return whose fault it is, if it is not the backend's; else None.

    It may be torch's export, delegraph, or kernels of the device's runtime.
    """

    def without_backend() -> Any:
        return delegraph.lower(
            one.exported, backends=[], registry=delegraph.Registry(discover=False)
        )

    def in_kernels() -> Any:
        with backend.saved(
            delegraph.lower(one.exported, backends=[], registry=backend.registry)
        ) as path:
            return delegraph.load(path, backend.registry, runtime=backend.where)

    inputs = one.inputs
    limit = tolerance_of(one.exported, backend.tolerance)
    with quiet():
        try:
            model: Any = one.program.make(3)[0]
            eager = (
                model.module(check_guards=False)
                if isinstance(model, ExportedProgram)
                else model
            )
            wanted = eager(*copy.deepcopy(inputs))
        except Exception as e:  # whatever it is, no backend was asked yet
            return f"torch: eager itself raises {type(e).__name__}"
        suspects: list[tuple[str, Callable[[], Any]]] = [
            (
                "torch: the exported program",
                lambda: copy.deepcopy(one.exported).module(check_guards=False),
            ),
            ("delegraph: the program without any backend", without_backend),
            *(
                [(f"{backend.where}: the program in its own kernels", in_kernels)]
                if backend.device
                else []
            ),
        ]
        for whose, run in suspects:
            try:
                found = Verification.of(run()(*copy.deepcopy(inputs)), wanted)
            except Exception as e:  # whatever it is, the suspect is to blame
                # what the backend takes, they lack
                if run is in_kernels and isinstance(e, Unsupported):
                    continue
                return f"{whose} raises {type(e).__name__}: {e!s:.100}"
            if found.relative_error > limit:
                return f"{whose} computes something else than the module"
    return None


def _declared_difference(
    one: LoweringAttempt, backend: ConfiguredBackend
) -> str | None:
    """Return a declared difference of an operator that was taken.

    Only for programs with special values.
    """
    declared = (
        backend.registry.spec(backend.name).traits.known_differences
        if one.program.special
        else ()
    )
    known = {
        operator: text for operators, text in declared for operator in operators.split()
    }
    taken = (
        [operator_name(n) for d in one.lowered.delegates for n in d.nodes]
        if one.lowered
        else []
    )
    return next((f"declared: {o} {known[o]}" for o in taken if o in known), None)


def is_comparable(one: LoweringAttempt, backend: ConfiguredBackend) -> bool:
    """Return whether a runtime exists, and the inputs determine real results."""
    random = is_random(one.exported) or any(
        d.is_complex for d in element_types(one.exported)
    )
    return (
        backend.runtime is not None
        and not random
        and (not backend.device or _fits_file(one, backend))
    )


def _fits_file(one: LoweringAttempt, backend: ConfiguredBackend) -> bool:
    """Return whether a program file can hold the host's calls.

    If it cannot, the backend is not at fault.
    """
    assert one.lowered is not None
    try:
        with quiet(), backend.saved(one.lowered):
            return True
    except Unsupported:
        return False
