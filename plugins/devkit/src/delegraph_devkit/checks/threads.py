"""Several partitions at once, for backends that say that they can."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from delegraph.api import lower

from ..backend_under_test import Subject
from ..check import Figures, check
from ..lowering_attempt import HandedOver, handed_over, quiet
from ..outcomes import CheckFailed, CheckSkipped

_THREADS, _ROUNDS = 4, 3


@check
def thread_safety(subject: Subject) -> Figures:
    """What a backend that declares ``thread_safe`` makes of many partitions at once is what it makes of each alone."""
    if not subject.registry.get_backend(subject.backend).thread_safe:
        raise CheckSkipped("the backend does not declare thread_safe")
    programs = {one.program.name: one.exported for one in subject.lowered}
    wanted = _compiled(subject, programs, None)
    for _ in range(_ROUNDS):
        with ThreadPoolExecutor(_THREADS) as executor:
            made = _compiled(subject, programs, executor)
        if made != wanted:
            place = next(k for k, (a, b) in enumerate(zip(made, wanted, strict=True)) if a != b)
            text = f"compiled by {_THREADS} threads, delegate {place} of all samples together is another than alone"
            raise CheckFailed(
                text, advice="keep what preprocess works on in local variables, or leave thread_safe False"
            )
    return {"delegates": len(wanted), "threads": _THREADS}


def _compiled(subject: Subject, programs: dict[str, Any], executor: ThreadPoolExecutor | None) -> list[HandedOver]:
    """What comes of all programs as methods of one lowering."""
    with quiet():
        try:
            made = lower(programs, backends=[subject.partitioner()], registry=subject.registry, executor=executor)
            return handed_over(made)
        except (Exception, SystemExit) as e:
            how = "all samples in one lowering" if executor is None else f"{_THREADS} threads"
            text = f"preprocess, called for {how}, raised {type(e).__name__}: {e}"
            raise CheckFailed(text, advice="see accepted_compiles; or leave thread_safe False") from e
