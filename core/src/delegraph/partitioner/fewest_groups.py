"""The fewest convex groups of accepted nodes, in time linear in the graph.

``level(n)`` is the largest number of times that a path to ``n`` leaves an accepted node
for a refused one. Accepted nodes of equal level form one group. The groups are convex,
because a path that leaves one comes back at a higher level. They are the fewest,
because a path with k such steps needs k + 1 convex groups.

The functions move *units*. A unit is a call with the ``getitem`` calls that unpack it,
or a list of calls that must stay together. In a list of units, each comes after the
units that it needs.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from delegraph_programs.reachable_nodes import find_root

if TYPE_CHECKING:
    from torch.fx import Node

Unit = list["Node"]
"""Calls that stay together, in graph order."""
Levels = dict["Node", int]
"""Call -> its level."""


def units(calls: Iterable[Node]) -> list[Unit]:
    """Return each call with the calls that unpack its results, in graph order."""
    unit_of: dict[Node, Unit] = {}
    all_units: list[Unit] = []
    for node in calls:
        if node.target is operator.getitem and node.args[0] in unit_of:
            unit_of[node] = unit_of[node.args[0]]  # type: ignore[index]
            unit_of[node].append(node)
        else:
            unit_of[node] = [node]
            all_units.append(unit_of[node])
    return all_units


def size(unit: Unit) -> int:
    """Return the number of operators in a unit; calls that unpack results do not count."""
    return sum(n.target is not operator.getitem for n in unit)


def levels(ordered: Iterable[Unit], accepted: Collection[Node]) -> Levels:
    """Return call -> its level.

    The level is the largest number of refused calls that follow an accepted call on a
    path to the call. ``ordered``: units, each after the units that it needs.
    ``accepted``: the calls that the backend takes. An operand without a level (a
    placeholder, or a constant of which partitions get copies) is available at level 0.
    """
    level: Levels = {}
    for unit in ordered:
        is_accepted = unit[0] in accepted
        # the operands that have a level
        operands = [i for node in unit for i in node.all_input_nodes if i in level]
        # a step from an accepted operand to a refused unit raises the level by one
        highest = max(
            (level[i] + (not is_accepted and i in accepted) for i in operands),
            default=0,
        )
        level.update(dict.fromkeys(unit, highest))
    return level


def sink(ordered: Sequence[Unit], level: Levels, accepted: Collection[Node]) -> None:
    """Raise accepted units to the lowest level of their users, in ``level``.

    Only a unit that has users, all accepted and with a level, is raised. The unit is
    then in one partition with a user of the lowest level, and fewer values cross
    between partitions.
    """
    for unit in reversed(ordered):  # users first
        if unit[0] in accepted:
            members = set(unit)
            users = [
                user for node in unit for user in node.users if user not in members
            ]
            if users and all(user in accepted and user in level for user in users):
                lowest = min(level[user] for user in users)
                level.update(dict.fromkeys(unit, lowest))


def group_by_level(
    ordered: Iterable[Unit], level: Levels, accepted: Collection[Node]
) -> list[list[Unit]]:
    """Return the accepted units of each level, lowest level first."""
    groups: dict[int, list[Unit]] = {}
    for unit in ordered:
        if unit[0] in accepted:
            groups.setdefault(level[unit[0]], []).append(unit)
    return [groups[k] for k in sorted(groups)]


def connected_components(group: Sequence[Unit]) -> list[list[Unit]]:
    """Return the connected parts of a group of units, in order of their first units."""
    # Call -> a call of the same part. A call that is its own parent is the root of its
    # part. Connecting two calls makes one root the parent of the other.
    parent = {n: unit[0] for unit in group for n in unit}
    for unit in group:
        for node in unit:
            for i in node.all_input_nodes:
                if i in parent:
                    parent[find_root(parent, i)] = find_root(parent, node)
    components: dict[Node, list[Unit]] = {}
    for unit in group:
        components.setdefault(find_root(parent, unit[0]), []).append(unit)
    return list(components.values())


def limit(group: Sequence[Unit], largest: int) -> list[list[Unit]]:
    """Cut a group, in the order of its units, into parts of at most ``largest``
    operators.

    A unit that has more operators than that is a part by itself.
    """
    parts: list[list[Unit]] = []
    room = 0  # how many operators the last part may still get
    for unit in group:
        if not parts or size(unit) > room:
            parts.append([])
            room = largest
        parts[-1].append(unit)
        room -= size(unit)
    return parts


def flatten(group: Iterable[Unit], position: Mapping[Node, int]) -> list[Node]:
    """Return the nodes of a group in graph order."""
    return sorted((n for unit in group for n in unit), key=position.__getitem__)
