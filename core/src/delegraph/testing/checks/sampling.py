"""Rules that are tried on many operators and random programs."""

from __future__ import annotations

from ..check import CheckFailed, CheckSkipped, Figures, check
from ..subject import Subject
from ..sweep import Violation


@check
def accepted_compiles(subject: Subject) -> Figures:
    """What the partitioner accepts compiles, and what it refuses has a reason: over OpInfo and random programs."""
    sweep = subject.sweep
    _raise_first(
        sweep.uncompiled,
        "let the partitioner ask the code that compiles: one check, used by both, cannot disagree with itself",
    )
    if not sweep.accepted:
        text = f"the backend took nothing of {sweep.programs} programs"
        raise CheckFailed(text, advice="give an example: a module with inputs that the backend takes at least in part")
    accepted, refused = len(sweep.accepted), len(sweep.refused)
    counts = {"programs": sweep.programs, "operators_accepted": accepted, "operators_refused": refused}
    return {**counts, "seconds": round(sweep.seconds, 1)}


@check
def numerics(subject: Subject) -> Figures:
    """What was lowered computes on this host what eager PyTorch computes, NaN and infinity in the same places."""
    subject.needs_runtime()
    sweep = subject.sweep
    _raise_first(sweep.different, "run the program in both ways; a wider tolerance is an attribute of the contract")
    if not sweep.compared:
        raise CheckSkipped("no program was delegated at least in part; see accepted_compiles")
    return {"programs": sweep.compared, "largest_error": sweep.largest_error, "tolerance": subject.tolerance}


def _raise_first(found: list[Violation], advice: str) -> None:
    if found:
        first, *others = found
        raise CheckFailed(first.text, first.program, advice, more=[str(v) for v in others])
