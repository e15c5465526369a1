"""Sets of nodes: reachable nodes, and groups that are joined pair by pair."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.fx import Node


def find_root(parent: dict[Node, Node], node: Node) -> Node:
    """Return the representative of the group of ``node`` (union-find over ``parent``)."""
    while parent[node] is not node:
        parent[node] = node = parent[parent[node]]
    return node


def reachable(
    starts: Iterable[Node], onward: Callable[[Node], Iterable[Node]]
) -> set[Node]:
    """Return ``starts`` and all nodes reachable from them; ``onward`` lists next nodes."""
    reached: set[Node] = set()
    waiting = list(starts)
    while waiting:
        node = waiting.pop()
        if node not in reached:
            reached.add(node)
            waiting += onward(node)
    return reached
