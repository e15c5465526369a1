"""Groups: calls that share a partition or all stay on the host.

The calls of a group are merged into one unit. If that closes a cycle, everything on the
cycle has to be in the same partition. A cycle through the host cannot be, so then a
group gives way: its calls are refused. One walk finds all cycles as strongly connected
components; for every group that gives way, its component is searched once more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from delegraph.errors import ContractViolation
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
    """Return the fewest partitions of ``accepted`` calls that need no own result.

    ``calls``: the calls of the program, in graph order. The calls of each list in
    ``groups`` are in one partition. Returns None if a group needs its own result
    through a call that is not accepted.
    """
    grouped = Groups(groups, calls)
    ordered, refused = grouped.units(calls, accepted)
    if refused:
        return None
    level = levels(ordered, accepted)
    move_to_users(ordered, level, accepted)
    parts = group_by_level(ordered, level, accepted)
    return [flatten(part, grouped.position) for part in parts]


class Groups:
    """Groups of calls of one program. Groups that overlap are merged; nodes that are no
    calls are left out.

    ``largest``: the most operators that a partition may have; None is no limit.
    """

    def __init__(
        self,
        groups: Iterable[Iterable[Node]],
        calls: Sequence[Node],
        largest: int | None = None,
    ) -> None:
        """Merge ``groups`` that overlap. ``calls``: the calls of the program, in graph
        order.
        """
        self.largest = largest
        self.position = {n: k for k, n in enumerate(calls)}
        calls_by_group = [self._calls(group) for group in groups]
        merged = _merge(calls_by_group, self.position) if any(calls_by_group) else []
        self.groups = [group for group in merged if size(group) > 1]
        self._group_of = {n: group for group in self.groups for n in group}

    def _calls(self, group: Iterable[Node]) -> list[Node]:
        """Return the calls in ``group``. Raises ContractViolation for a call of another
        program.
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
        """Return calls in a group with a call in ``refused`` -> why they stay on the
        host, too; without those in ``refused``.

        ``refused``: call -> why it stays on the host.
        """
        reasons: dict[Node, str] = {}
        for group in self.groups:
            refused_call = next((n for n in group if n in refused), None)
            if refused_call is not None:
                why = (
                    f"it goes with {refused_call.name}, which is refused:"
                    f" {refused[refused_call]}"
                )
                reasons.update((n, why) for n in group if n not in refused)
        return reasons

    def units(
        self, calls: Sequence[Node], accepted: Collection[Node]
    ) -> tuple[list[Unit], dict[Node, str]]:
        """Return the units of ``calls``, each after the units that it needs; and call
        -> why its group gives way.

        A group of ``accepted`` calls is one unit, together with all that lies on a
        cycle with it, unless the group gives way: then its calls are refused. Calls
        that are not accepted are units by themselves.
        """
        if not self.groups:
            return units(calls), {}
        # id of a group, or of a unit without a group -> the calls
        merged: dict[int, Unit] = {}
        for unit in units(calls):
            # the calls of a group become one unit; a refused call, of any group, stays
            # by itself
            merged_unit = (
                self._group_of.get(unit[0], unit) if unit[0] in accepted else unit
            )
            merged.setdefault(id(merged_unit), []).extend(unit)
        ordered: list[Unit] = []
        refused: dict[Node, str] = {}
        for component in _strongly_connected(list(merged.values())):
            self._resolve_cycles(component, accepted, refused)
            ordered.append(flatten(component, self.position))
        return ordered, refused

    def _resolve_cycles(
        self,
        component: Sequence[Unit],
        accepted: Collection[Node],
        refused: dict[Node, str],
    ) -> None:
        """Let groups of ``component`` give way, the widest first, until none needs its
        own result or is too large.

        ``component``: units that all need each other's results. The widest group is the
        one whose first and last call are farthest apart in the graph. Adds the calls of
        groups that give way to ``refused``, with the reason.
        """
        waiting = [component]
        while waiting:
            cyclic = waiting.pop()
            # its units that stay on the host, and its units that are groups and have
            # not given way
            outside = [u for u in cyclic if u[0] not in accepted or u[0] in refused]
            groups = [
                u
                for u in cyclic
                if u[0] in self._group_of and u[0] in accepted and u[0] not in refused
            ]
            why = self._why_not_partition(cyclic, outside) if groups else None
            if why is not None:
                widest = max(
                    groups,
                    key=lambda unit: self.position[unit[-1]] - self.position[unit[0]],
                )
                names = ", ".join(n.name for n in widest[:4]) + ", ..." * (
                    len(widest) > 4
                )
                refused.update(
                    (n, f"its group ({names}) {why}") for n in self._group_of[widest[0]]
                )
                # without this group, the rest of the component may fall apart
                waiting += _strongly_connected(
                    [*(u for u in cyclic if u is not widest), *units(widest)]
                )

    def _why_not_partition(
        self, component: Sequence[Unit], outside: Sequence[Unit]
    ) -> str | None:
        """Return why the units of a component, which need each other, cannot be one
        partition; None if they can.

        ``outside``: those of its units that stay on the host.
        """
        if outside:
            return (
                "cannot be one partition: it would need its own result through"
                f" {outside[0][0].name}"
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
    """Merge those of ``groups`` that share a call; each in graph order, with the calls
    that unpack its results.

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
    """Return the strongly connected components of ``units``; each comes after those
    that it needs.

    Tarjan's algorithm (1972), with a stack in place of recursion, because graphs are
    deeper than Python's limit.
    """
    index = {n: k for k, unit in enumerate(units) for n in unit}
    needs = [
        list(
            dict.fromkeys(
                index[i] for n in unit for i in n.all_input_nodes if i in index
            )
        )
        for unit in units
    ]
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
