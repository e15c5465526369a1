"""The fewest convex groups of accepted nodes, in time linear in the graph.

A group is convex if no path leaves it and comes back: it can then be one partition. A
path *drops out* where it goes from an accepted node to a refused one. The *level* of a
node is the largest number of times that a path to the node drops out. Accepted nodes of
equal level form one group. For example, in ``a -> b -> r -> c`` only ``r`` is refused:
``a`` and ``b`` have level 0, ``c`` has level 1.

The groups are convex, because a path that leaves one comes back at a higher level. They
are the fewest, because a path that drops out k times needs k + 1 convex groups.

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
    """Return the number of operators in a unit, without calls that unpack results."""
    return sum(n.target is not operator.getitem for n in unit)


def levels(ordered: Iterable[Unit], accepted: Collection[Node]) -> Levels:
    """Return call -> its level.

    ``ordered``: units, each after the units that it needs. ``accepted``: the calls that
    the backend takes. Operands in none of the units do not count: placeholders, and
    constants that are copied into each partition.
    """
    level: Levels = {}
    for unit in ordered:
        is_accepted = unit[0] in accepted
        highest = 0
        for node in unit:
            for operand in node.all_input_nodes:
                if operand in level:
                    drops_out = operand in accepted and not is_accepted
                    # ``drops_out`` counts as 0 or 1
                    highest = max(highest, level[operand] + drops_out)
        level.update(dict.fromkeys(unit, highest))
    return level


def move_to_users(
    ordered: Sequence[Unit], level: Levels, accepted: Collection[Node]
) -> None:
    """Set the level of accepted units to the lowest level of their users.

    A unit is then in one partition with a user, so fewer values cross between
    partitions. Units keep their level if they have no users, or a user that is refused
    or has no level. Changes ``level``.
    """
    for unit in reversed(ordered):  # users first
        if unit[0] in accepted:
            users: set[Node] = set()
            for node in unit:
                users.update(node.users)
            users.difference_update(unit)
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
    # Union-find: call -> a call of the same part. A call that is its own parent is the
    # root of its part. Connecting two calls makes one root the parent of the other.
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


def split_by_size(group: Sequence[Unit], largest: int) -> list[list[Unit]]:
    """Split a group, in the order of its units, into parts of at most ``largest``
    operators.

    A unit with more than ``largest`` operators is a part by itself.
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
    """Return the nodes of a group sorted by ``position``, their place in the graph."""
    return sorted((n for unit in group for n in unit), key=position.__getitem__)
