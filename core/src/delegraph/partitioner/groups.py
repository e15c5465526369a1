"""Calls that share a partition or have none.

Joined calls are one node of the graph. Where that closes a cycle, what lies on the cycle has to be in the partition as
well; a cycle that leads through the host cannot be, and then a group gives way. One walk (Tarjan's strongly connected
components) finds all cycles, and another one of a knot follows for every group that gives way in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import ContractViolation
from .levels import Unit, find_root, size, units

if TYPE_CHECKING:
    from torch.fx import Node


class Groups:
    """Groups of calls of one program. Groups that overlap are one; what is no call is left out."""

    def __init__(self, groups: Iterable[Iterable[Node]], calls: Sequence[Node], largest: int | None = None) -> None:
        self.largest = largest
        self._position = {n: k for k, n in enumerate(calls)}
        listed = [self._calls(group) for group in groups]
        merged = _merged(listed, self._position) if any(listed) else []
        self.groups = [group for group in merged if size(group) > 1]
        self._group = {n: group for group in self.groups for n in group}

    def _calls(self, group: Iterable[Node]) -> list[Node]:
        listed = list(group)
        for node in listed:
            if node.op == "call_function" and node not in self._position:
                text = f"a group names {node.name}, which is no call of the program that is partitioned"
                hint = "`groups` is called with each program, and returns lists of nodes of its graph"
                raise ContractViolation("contract-violation", text, hint=hint)
        return [n for n in listed if n in self._position]

    def broken(self, refused: Mapping[Node, str]) -> dict[Node, str]:
        """Accepted calls that cannot have all of their group, and why."""
        found: dict[Node, str] = {}
        for group in self.groups:
            missing = next((n for n in group if n in refused), None)
            if missing is not None:
                why = f"it goes with {missing.name}, which is refused: {refused[missing]}"
                found.update((n, why) for n in group if n not in refused)
        return found

    def units(self, calls: Sequence[Node], joined: Collection[Node]) -> tuple[list[Unit], dict[Node, str]]:
        """Units of ``calls``, each after what it needs, with what has to share a partition in one; and refusals.

        ``joined``: what may share a partition. Calls of a group that are not in it stand alone.
        """
        if not self.groups:
            return units(calls), {}
        found: list[Unit] = []
        refused: dict[Node, str] = {}
        for knot in _knots(self._joined(calls, joined)):
            refused.update(_Knot(self, joined).untie(knot))
            found.append(self.in_order(knot))
        return found, refused

    def _joined(self, calls: Sequence[Node], joined: Collection[Node]) -> list[Unit]:
        found: dict[int, Unit] = {}
        for unit in units(calls):
            together = self._group.get(unit[0], unit) if unit[0] in joined else unit
            found.setdefault(id(together), []).extend(unit)
        return list(found.values())

    def in_order(self, listed: Iterable[Unit]) -> Unit:
        """The calls of some units in graph order."""
        return sorted((n for unit in listed for n in unit), key=self._position.__getitem__)

    def of(self, unit: Unit) -> list[Node]:
        """The group that a unit belongs to; empty if there is none."""
        return self._group.get(unit[0], [])

    def width(self, unit: Unit) -> int:
        """How far apart in the graph the ends of a unit are."""
        return self._position[unit[-1]] - self._position[unit[0]]


class _Knot:
    """Lets groups give way, the widest first, until none needs its own result and none is too large."""

    def __init__(self, bonds: Groups, joined: Collection[Node]) -> None:
        self.bonds, self.joined = bonds, joined
        self.refused: dict[Node, str] = {}

    def untie(self, knot: Sequence[Unit]) -> dict[Node, str]:
        waiting = [knot]
        while waiting:
            tied = waiting.pop()
            groups = [unit for unit in tied if self._is_group(unit)]
            why = self._why_not(tied) if groups else None
            if why is not None:
                widest = max(groups, key=self.bonds.width)
                names = ", ".join(n.name for n in widest[:4]) + ", ..." * (len(widest) > 4)
                self.refused.update((n, f"its group ({names}) {why}") for n in self.bonds.of(widest))
                waiting += _knots([*(u for u in tied if u is not widest), *units(widest)])
        return self.refused

    def _is_group(self, unit: Unit) -> bool:
        return unit[0] not in self.refused and unit[0] in self.joined and bool(self.bonds.of(unit))

    def _why_not(self, knot: Sequence[Unit]) -> str | None:
        through = next((u[0].name for u in knot if u[0] not in self.joined or u[0] in self.refused), None)
        if through is not None:
            return f"cannot be one partition: it would need its own result through {through}"
        operators, largest = sum(map(size, knot)), self.bonds.largest
        if largest is not None and operators > largest:
            return f"takes a partition of {operators} operators; the largest has {largest}"
        return None


def _merged(groups: Sequence[list[Node]], position: Mapping[Node, int]) -> list[list[Node]]:
    """Groups that share a call as one, in graph order, with what unpacks their calls."""
    parent: dict[Node, Node] = {}
    for unit in units(position):
        parent.update(dict.fromkeys(unit, unit[0]))
    for group in groups:
        for node in group:
            parent[find_root(parent, node)] = find_root(parent, group[0])
    tops = {find_root(parent, n) for group in groups for n in group}
    found: dict[Node, list[Node]] = {}
    for node in position:
        if find_root(parent, node) in tops:
            found.setdefault(find_root(parent, node), []).append(node)
    return list(found.values())


def _knots(listed: Sequence[Unit]) -> list[list[Unit]]:
    """Units that need each other, together; each knot after what it needs."""
    place = {n: k for k, unit in enumerate(listed) for n in unit}
    needs = [list(dict.fromkeys(place[i] for n in unit for i in n.all_input_nodes if i in place)) for unit in listed]
    return [[listed[k] for k in component] for component in _components(needs)]


def _components(needs: Sequence[Sequence[int]]) -> list[list[int]]:
    """Tarjan's strongly connected components, without recursion; each after those that it needs."""
    found: list[list[int]] = []
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    open_: dict[int, None] = {}
    for start in range(len(needs)):
        path = [] if start in order else [(start, iter(needs[start]))]
        while path:
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
                    found.append(_closed(open_, k))
    return found


def _closed(open_: dict[int, None], last: int) -> list[int]:
    """Take from the end of ``open_`` down to ``last``."""
    component: list[int] = []
    while not component or component[-1] != last:
        component.append(open_.popitem()[0])
    return component[::-1]
