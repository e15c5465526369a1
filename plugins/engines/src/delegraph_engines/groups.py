"""Groups: calls that share a partition or all stay on the host.

The calls of a group are merged into one unit: a list of calls that are placed together.
If that closes a cycle, everything on the cycle has to be in the same partition. For
example, b needs a and c needs b: if a and c are a group, b has to join them. If b stays
on the host, that is impossible, so the group gives way: its calls are refused. One walk
finds all cycles as strongly connected components. For every group that gives way, its
component is searched once more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from delegraph.errors import ContractViolation
from delegraph.partitioner import Grouped
from delegraph.partitioner.fewest_groups import (
    Unit,
    flatten,
    group_by_level,
    levels,
    move_to_users,
    size,
    units,
)
from delegraph_programs.reachable_nodes import find_root

if TYPE_CHECKING:
    from torch.fx import Node


def fewest_partitions(
    calls: Sequence[Node],
    accepted: Collection[Node],
    groups: Iterable[Iterable[Node]] = (),
) -> list[list[Node]] | None:
    """Return the fewest partitions of the ``accepted`` calls.

    No partition may need its own result through the host.
    ``calls``: the calls of the program, in graph order. The calls of each list in
    ``groups`` are in one partition. Returns None if a group needs its own result
    through a call that is not accepted.
    """
    grouped = Groups(groups, calls)
    ordered, kept_out = grouped.units(calls, accepted)
    if kept_out:
        return None
    level = levels(ordered, accepted)
    move_to_users(ordered, level, accepted)
    parts = group_by_level(ordered, level, accepted)
    return [flatten(part, grouped.position) for part in parts]


class Groups:
    """Groups of calls of one program.

    Groups that overlap are merged. Nodes that are no calls are left out.

    ``largest``: the most operators that a partition may have; None is no limit.
    """

    def __init__(
        self,
        groups: Iterable[Iterable[Node]],
        calls: Sequence[Node],
        largest: int | None = None,
    ) -> None:
        """Merge ``groups`` that overlap.

        ``calls``: the calls of the program, in graph order.
        """
        self.largest = largest
        self.position = {call: k for k, call in enumerate(calls)}
        calls_by_group = [self._calls(group) for group in groups]
        merged = _merge(calls_by_group, self.position) if any(calls_by_group) else []
        self.groups = [group for group in merged if size(group) > 1]
        self._group_of: dict[Node, Unit] = {}
        for group in self.groups:
            self._group_of.update(dict.fromkeys(group, group))

    def _calls(self, group: Iterable[Node]) -> list[Node]:
        """Return the calls in ``group``.

        Raises ContractViolation for a call of another program.
        """
        nodes = list(group)
        for node in nodes:
            if node.op == "call_function" and node not in self.position:
                text = (
                    f"a group names {node.name}, which is no call of the program that"
                    " is partitioned"
                )
                hint = (
                    "`groups` is called with each program, and returns lists of nodes"
                    " of its graph"
                )
                raise ContractViolation("contract-violation", text, hint=hint)
        return [n for n in nodes if n in self.position]

    def broken(self, refused: Mapping[Node, str]) -> dict[Node, str]:
        """Return further calls that stay on the host, and the reasons.

        These are the other calls of each group with a call in ``refused``. ``refused``:
        call -> why it stays on the host.
        """
        reasons: dict[Node, str] = {}
        for group in self.groups:
            cause = next((call for call in group if call in refused), None)
            if cause is None:
                continue
            why = f"it goes with {cause.name}, which is refused: {refused[cause]}"
            others = [call for call in group if call not in refused]
            reasons.update(dict.fromkeys(others, why))
        return reasons

    def units(self, calls: Sequence[Node], accepted: Collection[Node]) -> Grouped:
        """Return the units of ``calls``, and the calls of groups that give way.

        A group of ``accepted`` calls is one unit, together with all that lies on a
        cycle with it, unless the group gives way. Calls that are not accepted are units
        by themselves.
        """
        if not self.groups:
            return Grouped(units(calls), {})
        # id of a group, or of a unit without a group -> the calls
        merged: dict[int, Unit] = {}
        for unit in units(calls):
            merged_unit = unit
            if unit[0] in accepted:
                merged_unit = self._group_of.get(unit[0], unit)
            merged.setdefault(id(merged_unit), []).extend(unit)
        ordered: list[Unit] = []
        refused: dict[Node, str] = {}
        for component in _strongly_connected(list(merged.values())):
            self._resolve_cycles(component, accepted, refused)
            ordered.append(flatten(component, self.position))
        return Grouped(ordered, refused)

    def _resolve_cycles(
        self,
        component: Sequence[Unit],
        accepted: Collection[Node],
        refused: dict[Node, str],
    ) -> None:
        """Let groups of ``component`` give way until the rest can be partitions.

        ``component``: units that all need each other's results. The widest group gives
        way first: its first and last call are farthest apart in the graph. Adds the
        calls of groups that give way to ``refused``, with the reason.
        """
        waiting = [component]
        while waiting:
            cyclic = waiting.pop()
            on_host: list[Unit] = []
            groups: list[Unit] = []
            for unit in cyclic:
                if unit[0] not in accepted or unit[0] in refused:
                    on_host.append(unit)
                elif unit[0] in self._group_of:
                    groups.append(unit)
            why = self._why_not_partition(cyclic, on_host) if groups else None
            if why is None:
                continue
            widest = max(groups, key=self._width)
            names = ", ".join(call.name for call in widest[:4])
            if len(widest) > 4:
                names += ", ..."
            reason = f"its group ({names}) {why}"
            refused.update(dict.fromkeys(self._group_of[widest[0]], reason))
            # without this group, the rest of the component may fall apart
            others = [unit for unit in cyclic if unit is not widest]
            waiting += _strongly_connected([*others, *units(widest)])

    def _width(self, unit: Unit) -> int:
        """Return how far the first and the last call of a unit are apart in the graph."""
        return self.position[unit[-1]] - self.position[unit[0]]

    def _why_not_partition(
        self, component: Sequence[Unit], on_host: Sequence[Unit]
    ) -> str | None:
        """Return why units that need each other cannot be one partition, or None.

        ``on_host``: those units of the component that stay on the host.
        """
        if on_host:
            return (
                "cannot be one partition: it would need its own result through"
                f" {on_host[0][0].name}"
            )
        operators = sum(map(size, component))
        if self.largest is not None and operators > self.largest:
            return (
                f"takes a partition of {operators} operators; the largest has"
                f" {self.largest}"
            )
        return None


def _merge(
    groups: Sequence[list[Node]], position: Mapping[Node, int]
) -> list[list[Node]]:
    """Return ``groups``, with those merged that share a call.

    Each has its calls in graph order, with the calls that unpack their results.
    ``position``: call of the program, in graph order -> its position.
    """
    # a call and the calls that unpack it begin as one set: a group with one of them has
    # them all
    parent: dict[Node, Node] = {}
    for unit in units(position):
        parent.update(dict.fromkeys(unit, unit[0]))
    for group in groups:
        for node in group:
            parent[find_root(parent, node)] = find_root(parent, group[0])
    roots = {find_root(parent, n) for group in groups for n in group}
    merged: dict[Node, list[Node]] = {}
    for node in position:
        if find_root(parent, node) in roots:
            merged.setdefault(find_root(parent, node), []).append(node)
    return list(merged.values())


def _strongly_connected(units: Sequence[Unit]) -> list[list[Unit]]:
    """Return the strongly connected components of ``units``.

    Each component comes after those that it needs. This is Tarjan's algorithm (1972),
    with a stack in place of recursion, because graphs are deeper than Python's limit.
    """
    index: dict[Node, int] = {}
    for k, unit in enumerate(units):
        index.update(dict.fromkeys(unit, k))
    # for each unit, the numbers of the units that it needs
    needs: list[list[int]] = []
    for unit in units:
        needed: dict[int, None] = {}
        for node in unit:
            operands = node.all_input_nodes
            needed.update(dict.fromkeys(index[i] for i in operands if i in index))
        needs.append(list(needed))
    components: list[list[int]] = []
    order: dict[int, int] = {}  # unit -> when it was visited
    # unit -> the earliest visited open unit that it is known to need
    low: dict[int, int] = {}
    # visited units whose component is not complete, a stack
    open_: dict[int, None] = {}
    for start in range(len(needs)):
        path = [] if start in order else [(start, iter(needs[start]))]
        while path:
            # the unit, and those of its needs that are not walked yet
            k, rest = path[-1]
            if k not in order:
                order[k] = low[k] = len(order)
                open_[k] = None
            for i in rest:
                if i not in order:
                    path.append((i, iter(needs[i])))
                    break
                if i in open_:
                    low[k] = min(low[k], order[i])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[k])
                if low[k] == order[k]:
                    component: list[int] = []
                    while not component or component[-1] != k:
                        component.append(open_.popitem()[0])
                    components.append(component[::-1])
    return [[units[k] for k in component] for component in components]
