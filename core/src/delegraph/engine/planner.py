"""The step ``decompose-and-partition``: assigns each call to a partition or the host.

A first plan shows which checks (assertions of the program) go to the host, which
constants are computed, and which subgraphs are decomposed. After each such change, the
program is planned again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from delegraph_programs import user_inputs
from delegraph_programs.fold_constants import fold_constants
from delegraph_programs.higher_order_subgraphs import (
    Subgraph,
    extract_subgraphs,
    put_back,
)
from delegraph_programs.program_arguments import VARYING
from torch.export import ExportedProgram

from ..discovery.plugin_call import using_registry
from ..discovery.registry import Registry
from ..partitioner import Partitioner
from ..report.values_as_text import format_size, pluralize
from .ask_partitioner import ask, check_settings, make_plan
from .decompose_on_demand import Decomposer, rebuild, support_of
from .leave_checks_to_host import settle_checks
from .order_host_program import order
from .partition_records import Plan, Tags


class Planner:
    """Makes the plans of one backend for all methods.

    ``decomposer`` None: operators are not decomposed. ``folds_constants``: if the
    backend refuses a call whose operands are constants, the call is computed now.
    ``whole``: if a method becomes a single partition, the partition takes all inputs
    of the method, also unused ones. ``notes``: lines for the report.
    """

    def __init__(
        self,
        decomposer: Decomposer | None,
        folds_constants: bool = False,
        whole: bool = False,
    ) -> None:
        self._decomposer = decomposer
        self._folds_constants = folds_constants
        self._whole = whole
        self.notes: list[str] = []

    def plan(
        self,
        programs: Mapping[str, ExportedProgram],
        turns: Sequence[Mapping[str, Partitioner]],
        registry: Registry,
    ) -> dict[str, Plan]:
        """Return the plan of each method for the current backend.

        ``turns``: for the current backend, and then for each of the next backends, a
        mapping method -> partitioner. A method without a partitioner of the current
        backend has no plan. Adds to ``notes``.
        """
        current = turns[0]
        to_plan = {m: program for m, program in programs.items() if m in current}
        plans: dict[str, Plan] = {}
        with using_registry(registry):
            # ``check_settings`` may raise OptionError. If methods share a partitioner,
            # it is called once, with all of their programs.
            for partitioner in {id(p): p for p in current.values()}.values():
                own = {m: p for m, p in to_plan.items() if current[m] is partitioner}
                check_settings(partitioner, own)
            for method, program in to_plan.items():
                partitioners = [turn[method] for turn in turns if method in turn]
                plans[method] = self._plan_method(method, program, partitioners)
        return plans

    def _plan_method(
        self, method: str, program: ExportedProgram, partitioners: Sequence[Partitioner]
    ) -> Plan:
        """Plan a method, and plan it again after each change of its program.

        Checks may be erased, and calls on constants may be computed. ``partitioners``:
        the partitioner of the current backend, then those of the next backends.
        """
        plan = self._plan(program, partitioners)
        is_changed, note = settle_checks(plan)
        if note:
            self.notes.append(f"{method}: {note}")
        if is_changed:
            plan = self._plan(rebuild(plan.program), partitioners)
        also_delegated = support_of(partitioners[0]) is None
        # a loop, because each plan may leave other calls on constants to the host
        while self._folds_constants:
            note = compute_constants(plan.program, plan.tags, also_delegated)
            if not note:
                break
            self.notes.append(f"{method}: {note}")
            plan = self._plan(rebuild(plan.program), partitioners)
        if self._whole:
            # without inputs that the export fixed, such as None or a text
            inputs = [
                node
                for node in user_inputs(plan.program)
                if isinstance(node.meta.get("val"), VARYING)
            ]
            for partition in plan.partitions:
                partition.inputs = inputs
        return plan

    def _plan(
        self, program: ExportedProgram, partitioners: Sequence[Partitioner]
    ) -> Plan:
        """Plan a program, and the subgraphs of calls that the host runs.

        ``partitioners``: as in ``_plan_method``.
        """
        if self._decomposer is None:
            plan = make_plan(ask(program, partitioners[0]))
        else:
            plan = self._decomposer.plan(program, partitioners[0], partitioners[1:])
        plan.units = order(plan)
        on_host = [
            subgraph
            for subgraph in extract_subgraphs(plan.program)
            if not any(call in plan.tags for call in subgraph.calls)
        ]
        plan.inner = [
            (subgraph, self._plan(subgraph.program, partitioners))
            for subgraph in on_host
        ]
        now_delegated = [
            (subgraph, rebuild(inner.program))
            for subgraph, inner in plan.inner
            if _is_now_delegated(subgraph, inner)
        ]
        if not now_delegated:
            return plan
        # The backend refused the control flow that calls these subgraphs, but takes all
        # of their decomposed calls. So it may take the control flow now.
        put_back(plan.program, now_delegated)
        return self._plan(rebuild(plan.program), partitioners)


def _is_now_delegated(subgraph: Subgraph, plan: Plan) -> bool:
    """Return whether ``plan`` decomposed ``subgraph``, and delegates all of its calls."""
    # a plan that decomposed nothing has the program of the subgraph
    if plan.program is subgraph.program:
        return False
    calls = [n for n in plan.program.graph.nodes if n.op == "call_function"]
    return all(call in plan.tags for call in calls)


def compute_constants(
    program: ExportedProgram, tags: Tags, also_delegated: bool
) -> str:
    """Replace the host's calls on constants alone by their values, and return a note.

    Returns "" if there are no such calls. ``tags``: those of the plan of ``program``.
    ``also_delegated``: replace delegated calls as well, because the partitioner has no
    support check. Otherwise its delegates would compute these calls in each run, and
    operators that use the results would not know that they are constant.
    """
    folded = fold_constants(
        program, lambda node: also_delegated or None in tags.get(node, (None,))
    )
    if folded is None:
        return ""
    count = pluralize(folded.operators, "operator")
    size = format_size(folded.bytes)
    return f"{count} on constants alone computed while lowering, {size}"
