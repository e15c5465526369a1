"""Repeats a support check as if the cause of a refusal were removed.

The report does this when it is read. delegraph-analysis removes the cause from the
program; without that distribution, the report makes no prediction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from delegraph_programs import TRACING
from delegraph_programs.tracing_lock import unlogged
from torch.export import ExportedProgram
from torch.fx import Node

from ..discovery.loading import load, missing
from ..errors import DelegraphError
from ..partitioner import Partitioner
from ..partitioner.contract import Reason
from .decompose import Decomposer
from .partition import Plan


class SupportCheck(NamedTuple):
    """A support check of a lowering.

    ``program``: the partitioned program. ``not_compiled``: the debug handles of
    operators that the partitioner takes and the compiler refuses.
    """

    program: ExportedProgram
    partitioner: Partitioner
    not_compiled: frozenset[int]


def repeatable_check(
    plan: Plan, partitioner: Partitioner, not_compiled: Iterable[Node]
) -> SupportCheck | None:
    """Return the support check that led to ``plan``, if repeating it is of use.

    That is so if a refusal has a ``Reason`` with ``unless``, and no subgraph stays on
    the host.
    """
    reasons = [refusal.reason for refusal in plan.refusals]
    if plan.inner or all(getattr(why, "unless", None) is None for why in reasons):
        return None
    handles = frozenset(node.meta.get("debug_handle", 0) for node in not_compiled)
    return SupportCheck(plan.program, partitioner, handles)


def still_refused(
    checks: Mapping[tuple[str, str], SupportCheck],
    method: str,
    backend: str,
    reason: Reason,
) -> frozenset[int] | None:
    """Return the debug handles of the operators that the backend would still refuse if
    ``reason`` did not hold.

    ``checks``: method and backend -> check. Returns None if there is no check, if
    delegraph-analysis is not installed, or if it cannot change the program.
    """
    check = checks.get((method, backend))
    if check is None or missing(["delegraph_analysis"]):
        return None
    remove_cause = load("delegraph_analysis.what_if:remove_cause")
    with TRACING, unlogged():
        try:
            changed = remove_cause(check.program, reason)
            answer = Decomposer().ask(changed, check.partitioner)
        except DelegraphError:
            return None
    return check.not_compiled.union(
        refusal.node.meta.get("debug_handle", 0) for refusal in answer.result.refusals
    )
