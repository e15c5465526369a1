"""Sets of nodes: those that can be reached from others, and groups that are joined pair
by pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.fx import Node


def find_root(parent: dict[Node, Node], node: Node) -> Node:
    """The node that represents the group of ``node``; ``parent`` leads from each node
    towards it (union-find).
    """
    while parent[node] is not node:
        parent[node] = node = parent[parent[node]]
    return node


def reachable(
    starts: Iterable[Node], onward: Callable[[Node], Iterable[Node]]
) -> set[Node]:
    """``starts``, and every node that can be reached from them; ``onward`` gives the
    next nodes of a node.
    """
    reached: set[Node] = set()
    waiting = list(starts)
    while waiting:
        node = waiting.pop()
        if node not in reached:
            reached.add(node)
            waiting += onward(node)
    return reached
