"""Check many operators and random programs.

The docstring of a check is the requirement that it tests.
"""

from __future__ import annotations

from collections import Counter
from typing import NoReturn

from ..backend_under_test import BackendUnderTest
from ..check import check
from ..check_result import Figures
from ..failures import CheckFailed, CheckSkipped
from ..sweep import GATE, MORE, SAMPLES, Sweep, faults_of, raise_first_fault
from ..trial import COMPILE_FAULTS

_SERIES = (SAMPLES, GATE, MORE)
"""The series of programs that ``backend.sweep`` tries."""


@check
def accepted_compiles(backend: BackendUnderTest) -> Figures:
    """Accepted calls compile, and refused calls have a reason, over OpInfo and random
    programs.
    """
    sweep = backend.sweep
    faults = [
        (outcome, fault)
        for outcome, fault in faults_of(sweep.outcomes)
        if fault.kind in COMPILE_FAULTS
    ]
    raise_first_fault(faults, backend, *_SERIES)
    if not sweep.accepted:
        _raise_nothing_accepted(sweep, backend)
    return {
        "programs": len(sweep.reached),
        "operators": len(sweep.accepted | sweep.refused),
        "operators_accepted": len(sweep.accepted),
        "operators_refused": len(sweep.refused),
    }


def _raise_nothing_accepted(sweep: Sweep, backend: BackendUnderTest) -> NoReturn:
    """Raise CheckFailed with the most frequent refusals.

    Raises CheckSkipped if the time was limited.
    """
    text = f"the backend accepted no operator of {len(sweep.reached)} programs"
    # with more time, later programs may have operators of this backend
    if backend.budget:
        raise CheckSkipped(
            f"{text} in the time of --quick; give an --example, or leave out --quick"
        )
    refusals: Counter[str] = Counter()
    for outcome in sweep.reached:
        refusals.update(reason for _, reason in outcome.refused)
    lines = [f"\n  {count} x {reason}" for reason, count in refusals.most_common(3)]
    advice = (
        "give a module with inputs that the backend accepts at least in part: --example"
        " path.py:function, or the attribute example of the contract class"
    )
    raise CheckFailed(
        f"{text}; its most frequent reasons:{''.join(lines)}", advice=advice
    )


@check
def numerics(backend: BackendUnderTest) -> Figures:
    """Delegates compute the same as eager, also with NaN, wide integers, other strides,
    and in a second call.
    """
    backend.needs_runtime()
    outcomes = backend.sweep.outcomes
    # the check accepted_compiles reports faults of partitioner and compiler
    faults = [
        (outcome, fault)
        for outcome, fault in faults_of(outcomes)
        if fault.kind not in COMPILE_FAULTS
    ]
    raise_first_fault(faults, backend, *_SERIES)
    compared = [o for o in outcomes if o.compared]
    if not compared:
        raise CheckSkipped(
            "the backend accepted no part of the programs; see accepted_compiles"
        )
    return {
        "programs": len(compared),
        "operators": len(Sweep(compared).accepted),
        "excused": sum(bool(o.excuse) for o in compared),
        "largest_error": max(o.error for o in compared),
        "tolerance": backend.tolerance,
    }
