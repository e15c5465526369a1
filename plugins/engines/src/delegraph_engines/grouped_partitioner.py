"""``GroupedPartitioner``: a ``CapabilityPartitioner`` that keeps groups together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from delegraph.backend import CompileSpec
from delegraph.partitioner import (
    CapabilityPartitioner,
    Grouped,
    Grouping,
    Limits,
    Support,
    WhyNot,
)

from .groups import Groups

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

NodeLists = Callable[["ExportedProgram"], Iterable[Sequence["Node"]]]
"""A function from a program to lists of its nodes."""


class GroupedPartitioner(CapabilityPartitioner):
    """Gives a backend the nodes that it takes, and never separates the calls of a group.

    ``groups``: a function that lists calls of a program, for example calls that are
    fused. The calls of a list share a partition or all stay on the host. Lists that
    overlap count as one. For the other parameters see ``CapabilityPartitioner``.
    """

    def __init__(
        self,
        support: Support | WhyNot,
        backend_id: str,
        compile_specs: Sequence[CompileSpec] = (),
        *,
        groups: NodeLists,
        additional_checks: Sequence[WhyNot] = (),
        limits: Limits | None = None,
    ) -> None:
        super().__init__(
            support,
            backend_id,
            compile_specs,
            additional_checks=additional_checks,
            limits=limits,
        )
        self.groups = groups

    def grouping(self, exported_program: ExportedProgram) -> Grouping:
        """Return a function that groups calls by ``groups`` of this program."""
        named = [list(group) for group in self.groups(exported_program)]
        every_call = {
            node for node in exported_program.graph.nodes if node.op == "call_function"
        }

        def group(calls: Sequence[Node], refused: Mapping[Node, str]) -> Grouped:
            # Constant calls of which each partition gets a copy are not in ``calls``.
            # They belong to no group.
            copied = every_call.difference(calls)
            computing = [[n for n in nodes if n not in copied] for nodes in named]
            groups = Groups(computing, calls, self.limits.largest)
            broken = groups.broken(refused)
            if broken:
                return Grouped([], broken)
            accepted = {node for node in calls if node not in refused}
            return groups.units(calls, accepted)

        return group
