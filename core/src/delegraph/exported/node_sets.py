"""Sets of nodes: what others lead to, and groups that are joined one pair at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.fx import Node


def find_root(parent: dict[Node, Node], node: Node) -> Node:
    """The node that stands for all that ``node`` was joined with (union-find)."""
    while parent[node] is not node:
        parent[node] = node = parent[parent[node]]
    return node


def reachable(starts: Iterable[Node], onward: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """``starts``, the nodes that ``onward`` names for each of them, those that it names for these, and so on."""
    reached: set[Node] = set()
    waiting = list(starts)
    while waiting:
        node = waiting.pop()
        if node not in reached:
            reached.add(node)
            waiting += onward(node)
    return reached
