"""Algorithms on sets of nodes: reachability and union-find."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.fx import Node


def find_root(parent: dict[Node, Node], node: Node) -> Node:
    """Return the root of the group of ``node`` in the union-find forest ``parent``.

    A node and its parent are in one group, and a root is its own parent. To join two
    groups, set the parent of one root to the other root.
    """
    while parent[node] is not node:
        # skip a parent, so that later searches are shorter
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


def reachable(
    starts: Iterable[Node], onward: Callable[[Node], Iterable[Node]]
) -> set[Node]:
    """Return ``starts`` and all nodes that are reachable from them.

    ``onward`` returns the next nodes of a node.
    """
    reached: set[Node] = set()
    waiting = list(starts)
    while waiting:
        node = waiting.pop()
        if node not in reached:
            reached.add(node)
            waiting += onward(node)
    return reached
