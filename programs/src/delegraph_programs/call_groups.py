"""Calls that a compiler needs together, and an order of groups of calls."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter

from torch.fx import Node

from .node_reachability import find_root


def sort_by_needs(needs: Mapping[int, set[int]]) -> list[int]:
    """Return the keys of ``needs``, each after the keys that it needs.

    If several keys may come next, the smallest comes next. Raises CycleError if a key
    needs itself, directly or through others.
    """
    sorter = TopologicalSorter(needs)
    sorter.prepare()
    ready: list[int] = []
    result: list[int] = []
    while sorter.is_active():
        # ``ready`` is a heap. Its smallest key comes next, which may make keys ready
        # that need it.
        for k in sorter.get_ready():
            heapq.heappush(ready, k)
        result.append(heapq.heappop(ready))
        sorter.done(result[-1])
    return result


def inseparable_groups(calls: Sequence[Node]) -> list[list[Node]]:
    """Return ``calls`` of one graph in groups, each group after those that it needs.

    A call that unpacks results is in the group of the call that makes them. Compilers
    match quantize and dequantize with the call between them. So a quantize is in the
    group of the call before it, and a dequantize in that of its first user. If the
    scale is computed at run time, all of these calls are in one group.

    ``calls`` and each group are in graph order. Groups are in graph order, too, unless
    they need each other differently.
    """
    root = {node: node for node in calls}

    def join(node: Node, others: Sequence[Node]) -> None:
        for other in others:
            if other in root:
                root[find_root(root, node)] = find_root(root, other)

    for node in calls:
        name = getattr(node.target, "__name__", "")
        first_user = [user for user in calls if user in node.users][:1]
        value = node.all_input_nodes[:1]
        scales = [n for n in node.all_input_nodes[1:] if n in root]
        if name.startswith("dequantize"):
            join(node, first_user)
        elif name.startswith("quantize") and scales:
            join(node, [*scales, *first_user])
        elif name.startswith("quantize") or name == "getitem":
            join(node, value)

    groups: dict[int, list[Node]] = {}
    group_of: dict[Node, int] = {}
    first_of_root: dict[Node, int] = {}
    for position, node in enumerate(calls):
        first = first_of_root.setdefault(find_root(root, node), position)
        groups.setdefault(first, []).append(node)
        group_of[node] = first
    needs: dict[int, set[int]] = {first: set() for first in groups}
    for node in calls:
        own = group_of[node]
        operands = [n for n in node.all_input_nodes if n in group_of]
        needs[own].update(group_of[n] for n in operands if group_of[n] != own)
    return [groups[first] for first in sort_by_needs(needs)]
