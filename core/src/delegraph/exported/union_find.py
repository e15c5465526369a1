"""Groups of nodes that are joined one pair at a time (union-find)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.fx import Node


def find_root(parent: dict[Node, Node], node: Node) -> Node:
    """The node that stands for all that ``node`` was joined with (union-find)."""
    while parent[node] is not node:
        parent[node] = node = parent[parent[node]]
    return node
