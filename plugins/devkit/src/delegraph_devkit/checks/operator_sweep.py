"""Rules that are tried on many operators and random programs."""

from __future__ import annotations

from ..backend_under_test import Subject
from ..check import Figures, check
from ..outcomes import CheckFailed, CheckSkipped
from ..reproduce import calling_again, lowering, verifying
from ..sweep import find
from ..trial import UNCOMPILED, Fault, Kind, Outcome


@check
def accepted_compiles(subject: Subject) -> Figures:
    """What the partitioner accepts compiles, and what it refuses has a reason: over OpInfo and random programs."""
    sweep = subject.sweep
    _raise_first(sweep.faults(compiling=True), subject)
    programs, accepted = len(sweep.reached), sweep.accepted
    if not accepted:
        text = f"the backend took nothing of {programs} programs"
        raise CheckFailed(text, advice="give an example: a module with inputs that the backend takes at least in part")
    counts = {"operators_accepted": len(accepted), "operators_refused": len(sweep.refused)}
    return {"programs": programs, "operators": len(accepted | sweep.refused), **counts}


@check
def numerics(subject: Subject) -> Figures:
    """What was lowered computes what eager computes: NaN, infinity and wide integers too, and call after call."""
    subject.needs_runtime()
    sweep = subject.sweep
    _raise_first(sweep.faults(compiling=False), subject)
    compared = [o for o in sweep.outcomes if o.compared]
    if not compared:
        raise CheckSkipped("no program was delegated at least in part; see accepted_compiles")
    operators = {name for o in compared for name in o.accepted}
    excused = sum(bool(o.excuse) for o in compared)
    return {
        **{"programs": len(compared), "operators": len(operators), "excused": excused},
        **{"largest_error": max(o.error for o in compared), "tolerance": subject.tolerance},
    }


def _raise_first(found: list[tuple[Outcome, Fault]], subject: Subject) -> None:
    if found:
        (one, fault), *others = found
        more = [f"{o.program}: {f.text.partition(chr(10))[0]}" for o, f in others]
        raise CheckFailed(fault.text, find(subject, one.program), fault.kind.value, more, _ending(fault, subject))


def _ending(fault: Fault, subject: Subject) -> str:
    if fault.kind is Kind.ALIASED:
        return calling_again(subject)
    return lowering(subject) + "print(lowered.report)\n" if fault.kind in UNCOMPILED[:3] else verifying(subject)
