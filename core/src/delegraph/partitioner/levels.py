"""The fewest convex groups of accepted nodes, in time linear in the graph.

``level(n)`` counts, over all paths to ``n``, how often an accepted node was left for a refused one. Accepted nodes of
equal level form one group: a path that leaves it comes back at a higher level, so groups are convex, and no grouping
into convex groups has fewer, because a path with k such steps needs k + 1 of them.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.fx import Node

Levels = dict["Node", int]


def levels(calls: Sequence[Node], accepted: Collection[Node], floating: Collection[Node]) -> Levels:
    """Level of every call; what is not in it (placeholders, ``floating`` constants) is available at level 0."""
    level: Levels = {}
    for node in calls:
        if node not in floating:
            level[node] = _level(node, node in accepted, level, accepted)
    return level


def _level(node: Node, accepted_here: bool, level: Levels, accepted: Collection[Node]) -> int:
    highest = 0
    for i in node.all_input_nodes:
        if i in level:
            step = 0 if accepted_here or i not in accepted else 1
            highest = max(highest, level[i] + step)
    return highest


def sink(calls: Sequence[Node], level: Levels, accepted: Collection[Node]) -> None:
    """Move an accepted node whose users are all accepted to the lowest level of a user: fewer values cross.

    A node that returns several values moves with the ``getitem`` calls that unpack it.
    """
    for node in reversed(calls):
        if node in level and node in accepted and node.target is not operator.getitem:
            users = list(consumers(node))
            if users and all(u in accepted and u in level for u in users):
                lowest = min(level[u] for u in users)
                for moved in (node, *unpackers(node)):
                    level[moved] = lowest


def unpackers(node: Node) -> list[Node]:
    """The ``getitem`` calls on ``node``, and on those."""
    direct = [u for u in node.users if u.target is operator.getitem]
    return [n for u in direct for n in (u, *unpackers(u))]


def consumers(node: Node) -> Iterator[Node]:
    """Who uses ``node``, seen through ``getitem``."""
    for user in node.users:
        if user.target is operator.getitem:
            yield from consumers(user)
        else:
            yield user


def groups(calls: Iterable[Node], level: Levels, accepted: Collection[Node]) -> list[list[Node]]:
    """Accepted nodes by level, lowest first, each group in graph order."""
    found: dict[int, list[Node]] = {}
    for node in calls:
        if node in accepted and node in level:
            found.setdefault(level[node], []).append(node)
    return [found[k] for k in sorted(found)]


def connected(group: Sequence[Node]) -> list[list[Node]]:
    """The connected pieces of a group, in order of their first nodes (union-find)."""
    parent = {n: n for n in group}
    for node in group:
        for i in node.all_input_nodes:
            if i in parent:
                parent[_root(parent, i)] = _root(parent, node)
    pieces: dict[Node, list[Node]] = {}
    for node in group:
        pieces.setdefault(_root(parent, node), []).append(node)
    return list(pieces.values())


def _root(parent: dict[Node, Node], node: Node) -> Node:
    while parent[node] is not node:
        parent[node] = node = parent[parent[node]]
    return node


def limited(group: Sequence[Node], largest: int) -> list[list[Node]]:
    """A group cut, in graph order, into pieces of at most ``largest`` operators; unpacking stays with its producer."""
    pieces: list[list[Node]] = [[]]
    home: dict[Node, list[Node]] = {}
    sizes = [0]
    for node in group:
        if node.target is operator.getitem and node.args[0] in home:
            home[node] = home[node.args[0]]  # type: ignore[index]
        else:
            if sizes[-1] == largest:
                pieces.append([])
                sizes.append(0)
            home[node] = pieces[-1]
            sizes[-1] += 1
        home[node].append(node)
    return pieces
