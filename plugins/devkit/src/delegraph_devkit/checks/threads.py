"""Several partitions at once, for backends that say that they can."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import delegraph

from ..backend_under_test import BackendUnderTest
from ..check import check
from ..check_result import Figures
from ..configured_backend import ConfiguredBackend
from ..failures import CheckFailed, CheckSkipped
from ..lowering_attempt import HandedOver, handed_over, quiet
from ..subprocesses import Report
from ..trial import Kind

_THREADS, _ROUNDS = 4, 3


@check
def thread_safety(backend: BackendUnderTest) -> Figures:
    """A backend that declares ``thread_safe`` makes the same of many partitions at once as of each alone."""
    if not backend.registry.get_backend(backend.name).thread_safe:
        raise CheckSkipped("the backend does not declare thread_safe")
    left_out = backend.left_out(times=1 + _ROUNDS)
    names = [one.program.name for one in backend.lowered if one.program.name not in left_out]
    answer = backend.run_apart(compile_at_once, names)
    if answer.died:
        raise CheckFailed(f"compiling {answer.progress}, the process {answer.died}", advice=Kind.CRASH.value)
    delegates, why = answer.result or (0, f"compiling {answer.progress} {answer.failure}")
    if why:
        advice = "keep what preprocess works on in local variables, or leave thread_safe False"
        raise CheckFailed(why, advice=advice)
    return {"delegates": delegates, "threads": _THREADS}


def compile_at_once(backend: ConfiguredBackend, names: list[str], report: Report) -> tuple[int, str | None]:
    """Run in another process: compile the samples one by one and by threads; how many delegates, and what differs."""
    programs = {p.name: p.exported[0] for p in backend.programs if p.name in names and p.exported is not None}

    def compile_all(executor: ThreadPoolExecutor | None) -> list[HandedOver]:
        """Lower all programs as methods of one lowering."""
        report("all samples in one lowering" if executor is None else f"all samples by {_THREADS} threads")
        with quiet():
            partitioner = backend.partitioner()
            lowered = delegraph.lower(programs, backends=[partitioner], registry=backend.registry, executor=executor)
            return handed_over(lowered)

    how = "all samples in one lowering"
    try:
        alone = compile_all(None)
        how = f"{_THREADS} threads"
        for _ in range(_ROUNDS):
            with ThreadPoolExecutor(_THREADS) as executor:
                together = compile_all(executor)
            if together != alone:
                place = next(k for k, (a, b) in enumerate(zip(together, alone, strict=True)) if a != b)
                return 0, f"compiled by {how}, delegate {place} of all samples together is another than alone"
    except (Exception, SystemExit) as e:
        return 0, f"preprocess, called for {how}, raised {type(e).__name__}: {e}"
    return len(alone), None
