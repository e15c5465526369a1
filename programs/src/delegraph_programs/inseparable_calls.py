"""Groups calls that a compiler needs together, and orders the groups."""

from __future__ import annotations

import heapq
from collections.abc import Container, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from torch.fx import Node

from .reachable_nodes import find_root


def sort_by_needs(needs: Mapping[int, set[int]]) -> list[int]:
    """Return the keys of ``needs``, each after the keys that it needs.

    If several keys may come next, the smallest comes next. Raises CycleError if a key
    needs itself, directly or through others.
    """
    sorter = TopologicalSorter(needs)
    sorter.prepare()
    ready: list[int] = []  # a heap of the keys that may come next
    result: list[int] = []
    while sorter.is_active():
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
    scale is computed at run time, all of these calls are in one group. Groups that need
    each other are one group.

    ``calls`` and each group are in graph order.
    """
    # union-find: a call and its entry in ``root`` are in one group
    root = {node: node for node in calls}
    for node in calls:
        for partner in _partners(node, root):
            root[find_root(root, node)] = find_root(root, partner)
    while True:
        groups = _by_root(calls, root)
        try:
            order = sort_by_needs(_needs(groups))
        except CycleError as error:
            # join the groups of the cycle, and try again
            first, *others = error.args[1]
            for other in others:
                one = find_root(root, groups[first][0])
                root[one] = find_root(root, groups[other][0])
        else:
            return [groups[position] for position in order]


def _partners(node: Node, calls: Container[Node]) -> list[Node]:
    """Return those of ``calls`` that a compiler needs together with ``node``."""
    name = getattr(node.target, "__name__", "")
    # the operands of a quantize are the tensor, the scale and the zero point
    operands = node.all_input_nodes
    first_user = [user for user in node.users if user in calls][:1]
    partners: list[Node] = []
    if name.startswith("dequantize"):
        partners = first_user
    elif name.startswith("quantize") and any(scale in calls for scale in operands[1:]):
        partners = [*operands[1:], *first_user]
    elif name.startswith("quantize") or name == "getitem":
        partners = operands[:1]
    return [partner for partner in partners if partner in calls]


def _by_root(calls: Sequence[Node], root: dict[Node, Node]) -> dict[int, list[Node]]:
    """Return position of a group's first call -> the calls of the group."""
    groups: dict[int, list[Node]] = {}
    first_of_root: dict[Node, int] = {}
    for position, node in enumerate(calls):
        first = first_of_root.setdefault(find_root(root, node), position)
        groups.setdefault(first, []).append(node)
    return groups


def _needs(groups: Mapping[int, Sequence[Node]]) -> dict[int, set[int]]:
    """Return, for the key of each group, the keys of groups that compute its operands."""
    group_of = {node: first for first, group in groups.items() for node in group}
    needs: dict[int, set[int]] = {}
    for first, group in groups.items():
        operands = [operand for node in group for operand in node.all_input_nodes]
        computed = {group_of[operand] for operand in operands if operand in group_of}
        needs[first] = computed - {first}
    return needs
