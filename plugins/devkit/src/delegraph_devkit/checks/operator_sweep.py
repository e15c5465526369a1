"""Check rules on many operators and random programs."""

from __future__ import annotations

from collections import Counter

from ..backend_under_test import BackendUnderTest
from ..check import check
from ..check_result import Figures
from ..failures import CheckFailed, CheckSkipped
from ..sweep import GATE, MORE, SAMPLES, raise_first
from ..trial import UNCOMPILED


@check
def accepted_compiles(backend: BackendUnderTest) -> Figures:
    """What the partitioner accepts compiles, and what it refuses has a reason: over
    OpInfo and random programs.
    """
    sweep = backend.sweep
    faults = [(o, f) for o in sweep.outcomes for f in o.faults if f.kind in UNCOMPILED]
    raise_first(faults, backend, SAMPLES, GATE, MORE)
    programs = len(sweep.reached)
    accepted = sweep.accepted
    if not accepted:
        text = f"the backend took nothing of {programs} programs"
        refusals = Counter(reason for o in sweep.reached for _, reason in o.refused)
        if backend.budget:  # those after them may be its own
            raise CheckSkipped(
                f"{text}, for which there was time; give an --example, or leave"
                " --quick out"
            )
        said = "".join(f"\n  {n} x {reason}" for reason, n in refusals.most_common(3))
        advice = (
            "give a module with inputs that the backend takes at least in part:"
            " --example path.py:function, or"
        )
        raise CheckFailed(
            f"{text}; its reasons most often:{said}",
            advice=f"{advice} the contract class's example",
        )
    counts = {
        "operators_accepted": len(accepted),
        "operators_refused": len(sweep.refused),
    }
    return {"programs": programs, "operators": len(accepted | sweep.refused), **counts}


@check
def numerics(backend: BackendUnderTest) -> Figures:
    """What was lowered computes what eager computes, also with NaN, wide integers,
    other strides, and called again.
    """
    backend.needs_runtime()
    outcomes = backend.sweep.outcomes
    faults = [(o, f) for o in outcomes for f in o.faults if f.kind not in UNCOMPILED]
    raise_first(faults, backend, SAMPLES, GATE, MORE)
    compared = [o for o in outcomes if o.compared]
    if not compared:
        raise CheckSkipped(
            "no program was delegated at least in part; see accepted_compiles"
        )
    operators = {name for o in compared for name in o.accepted}
    return {
        "programs": len(compared),
        "operators": len(operators),
        "excused": sum(bool(o.excuse) for o in compared),
        "largest_error": max(o.error for o in compared),
        "tolerance": backend.tolerance,
    }
