"""The support checks that a report may repeat, to predict the gain of a change."""

from __future__ import annotations

from collections.abc import Iterable

from delegraph_programs.call_names import handle_of
from torch.export import ExportedProgram
from torch.fx import Node

from ..partitioner import Partitioner
from ..report.rows import SupportCheck
from .decompose_on_demand import Decomposer
from .partition_records import Plan


def repeatable_check(
    plan: Plan, partitioner: Partitioner, not_compiled: Iterable[Node]
) -> SupportCheck | None:
    """Return the support check that led to ``plan``; None if nothing can be predicted.

    A prediction needs a refusal that names the change which would avoid it
    (``Reason.unless``). It is not made for programs with subgraphs on the host.
    ``not_compiled``: calls that the partitioner takes but the compiler refuses. They
    count as refused.
    """
    can_change = any(
        getattr(refusal.reason, "unless", None) is not None for refusal in plan.refusals
    )
    if plan.inner or not can_change:
        return None

    def refused(program: ExportedProgram) -> frozenset[int]:
        """Return the debug handles of the refused calls; may decompose calls."""
        refusals = Decomposer().ask(program, partitioner).result.refusals
        nodes = [*not_compiled, *(refusal.node for refusal in refusals)]
        return frozenset(map(handle_of, nodes))

    return SupportCheck(plan.program, refused)
