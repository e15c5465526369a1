"""What would a backend take if the cause of a refusal were removed?

The report repeats the support check for that when it is read. delegraph-analysis
removes the cause from the program; without that distribution, the report makes no
prediction.
"""

from __future__ import annotations

from collections.abc import Iterable
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


class SupportChecks:
    """The support checks of one lowering, to be repeated without the cause of a
    refusal.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], SupportCheck] = {}  # by method and backend

    def keep(
        self,
        method: str,
        backend: str,
        plan: Plan,
        partitioner: Partitioner,
        not_compiled: Iterable[Node],
    ) -> None:
        """Keep the check of ``backend`` on ``method``, if a refusal says what would
        have to change.

        Such a refusal has a ``Reason`` with ``unless``. Nothing is kept if the program
        has subgraphs on the host.
        """
        if not plan.inner and any(
            getattr(r.reason, "unless", None) is not None for r in plan.refusals
        ):
            handles = frozenset(n.meta.get("debug_handle", 0) for n in not_compiled)
            self._kept[method, backend] = SupportCheck(
                plan.program, partitioner, handles
            )

    def __call__(
        self, method: str, backend: str, reason: Reason
    ) -> frozenset[int] | None:
        """Return the debug handles of the operators that the backend would still refuse
        if ``reason`` did not hold.

        None if that is not known: the check was not kept, the program cannot be changed
        so that the reason no longer holds, or delegraph-analysis is not installed.
        """
        check = self._kept.get((method, backend))
        if check is None or missing(["delegraph_analysis"]):
            return None
        remove_cause = load("delegraph_analysis.what_if:remove_cause")
        with TRACING, unlogged():
            try:
                changed = remove_cause(check.program, reason)
                answer = Decomposer(watched=False).ask(changed, check.partitioner)
            except DelegraphError:
                return None
        return check.not_compiled.union(
            r.node.meta.get("debug_handle", 0) for r in answer.result.refusals
        )
