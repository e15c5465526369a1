"""The fewest convex groups of accepted nodes, in time linear in the graph.

``level(n)`` counts, over all paths to ``n``, how often an accepted node was left for a refused one. Accepted nodes of
equal level form one group: a path that leaves it comes back at a higher level, so groups are convex, and no grouping
into convex groups has fewer, because a path with k such steps needs k + 1 of them.

What moves is a *unit*: a call with the ``getitem`` calls that unpack it, or calls that have to stay together (see
``bonds``). Units are listed so that each comes after what it needs.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.fx import Node

Unit = list["Node"]
Levels = dict["Node", int]


def units(calls: Iterable[Node]) -> list[Unit]:
    """Each call with the calls that unpack it, and those that unpack these, in graph order."""
    home: dict[Node, Unit] = {}
    found: list[Unit] = []
    for node in calls:
        if node.target is operator.getitem and node.args[0] in home:
            home[node] = home[node.args[0]]  # type: ignore[index]
            home[node].append(node)
        else:
            home[node] = [node]
            found.append(home[node])
    return found


def size(unit: Unit) -> int:
    """How many operators it has; unpacking is none."""
    return sum(n.target is not operator.getitem for n in unit)


def levels(listed: Iterable[Unit], accepted: Collection[Node]) -> Levels:
    """Level of every call; what is not in it (placeholders, floating constants) is available at level 0."""
    level: Levels = {}
    for unit in listed:
        level.update(dict.fromkeys(unit, _level(unit, level, accepted)))
    return level


def _level(unit: Unit, level: Levels, accepted: Collection[Node]) -> int:
    highest, inside = 0, unit[0] in accepted
    for node in unit:
        for i in node.all_input_nodes:
            if i in level:
                step = 0 if inside or i not in accepted else 1
                highest = max(highest, level[i] + step)
    return highest


def sink(listed: Sequence[Unit], level: Levels, accepted: Collection[Node]) -> None:
    """Move an accepted unit whose users are all accepted to the lowest level of a user: fewer values cross."""
    for unit in reversed(listed):
        if unit[0] in accepted:
            users = _users(unit)
            if users and all(u in accepted and u in level for u in users):
                level.update(dict.fromkeys(unit, min(level[u] for u in users)))


def _users(unit: Unit) -> Collection[Node]:
    if len(unit) == 1:
        return unit[0].users
    inside = set(unit)
    return [u for n in unit for u in n.users if u not in inside]


def group_by_level(listed: Iterable[Unit], level: Levels, accepted: Collection[Node]) -> list[list[Unit]]:
    """Accepted units by level, lowest first."""
    found: dict[int, list[Unit]] = {}
    for unit in listed:
        if unit[0] in accepted:
            found.setdefault(level[unit[0]], []).append(unit)
    return [found[k] for k in sorted(found)]


def connected_components(group: Sequence[Unit]) -> list[list[Unit]]:
    """The connected pieces of a group, in order of their first units (union-find)."""
    parent = {n: unit[0] for unit in group for n in unit}
    for unit in group:
        for node in unit:
            for i in node.all_input_nodes:
                if i in parent:
                    parent[find_root(parent, i)] = find_root(parent, node)
    pieces: dict[Node, list[Unit]] = {}
    for unit in group:
        pieces.setdefault(find_root(parent, unit[0]), []).append(unit)
    return list(pieces.values())


def find_root(parent: dict[Node, Node], node: Node) -> Node:
    """The node that stands for all that ``node`` was joined with."""
    while parent[node] is not node:
        parent[node] = node = parent[parent[node]]
    return node


def limit(group: Sequence[Unit], largest: int) -> list[list[Unit]]:
    """A group cut, in the order of its units, into pieces of at most ``largest`` operators."""
    pieces: list[list[Unit]] = []
    room = 0
    for unit in group:
        if not pieces or size(unit) > room:
            pieces.append([])
            room = largest
        pieces[-1].append(unit)
        room -= size(unit)
    return pieces


def flatten(group: Iterable[Unit], position: Mapping[Node, int]) -> list[Node]:
    """The nodes of a group in graph order."""
    return sorted((n for unit in group for n in unit), key=position.__getitem__)
