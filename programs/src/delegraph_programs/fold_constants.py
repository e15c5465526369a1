"""Computes calls on constants alone, where that makes no file larger.

A call is computed if its value is at most as large as the calls and constants that go
away with it. So the embedding of known positions becomes a constant. A mask that is
made of a few numbers, by calls that take few bytes in a file, does not become a table
of megabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from .call_names import is_operator
from .compute_constant_calls import (
    ConstantValues,
    ancestors,
    constant_calls,
    constants_of,
    elements_read,
)
from .exported_program import (
    CONSTANT_KINDS,
    add_constant,
    constant_placeholders,
    constant_tensor,
    has_effect,
    placeholders,
)
from .memory_overlap import overlapping
from .reachable_nodes import find_root

TOGETHER = 64 * 2**20
"""The most bytes of all values together that one call of ``fold_constants`` computes."""
CALL = 128
"""How many bytes a call is taken to need in a program file, with the description of its
result.
"""
SHARE = 128
"""Values smaller than what they are computed from may together take this part of the
bytes of all constants.
"""
aten = torch.ops.aten


class FoldedConstants(NamedTuple):
    """How many operators were computed, and the bytes of their values."""

    operators: int
    bytes: int


def fold_constants(
    program: ExportedProgram, may_fold: Callable[[Node], bool]
) -> FoldedConstants | None:
    """Replace calls on constants alone by their values, if ``may_fold`` allows it.

    Changes the graph of ``program``. Returns None if nothing was replaced.
    """
    constants = constant_placeholders(program)
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    # the usual case, found quickly
    if not any(constants.issuperset(elements_read(n)) for n in calls):
        return None
    calls = [n for n in calls if may_fold(n)]
    on_constants = constant_calls(program)
    candidates = on_constants.intersection(calls)
    # only calls whose values are used elsewhere are replaced; what only they need then
    # goes away by itself
    ends = [n for n in calls if n in candidates and _used_outside(n, candidates)]
    values = ConstantValues(constants_of(program))
    total = 0
    is_changed = False
    for node in _worth_computing(ends, _constant_bytes(program)):
        value = values.of(node)
        if value is not None and total + value.nbytes <= TOGETHER:
            total += value.nbytes
            constant = add_constant(program, value, f"{node.name}_computed")
            # calls of which it is an operand now can be computed, too
            values.by_node[constant] = value
            _replace(node, constant)
            is_changed = True
    if not is_changed:
        return None
    return FoldedConstants(_erase_unused(program, on_constants), total)


def _constant_bytes(program: ExportedProgram) -> dict[Node, int]:
    """Return constant -> its bytes.

    Constants that share memory count 0: a file stores that memory once, and other
    constants may need it.
    """
    tensors = {
        n: constant_tensor(program, s)
        for n, s in placeholders(program)
        if s.kind in CONSTANT_KINDS
    }
    shared = {n for pair in overlapping(tensors) for n in pair if tensors[n].numel()}
    return {
        n: 0 if n in shared else t.numel() * t.element_size()
        for n, t in tensors.items()
    }


def _worth_computing(ends: Sequence[Node], sizes: Mapping[Node, int]) -> list[Node]:
    """Return the ``ends`` whose values take at most as many bytes as the nodes that
    become unneeded with them.

    ``ends``: calls whose values are used elsewhere. ``sizes``: the bytes of constants.
    Ends that share a call or a constant are weighed together first, because the shared
    node becomes unneeded only with all of them. Small values that free nothing, such as
    the norms of a weight, are chosen last, up to a share of all constants (``SHARE``).
    """
    chosen: set[Node] = set()
    removed: set[Node] = set()  # nodes that become unneeded with the chosen ends
    for group in _groups_sharing_nodes(ends):
        # together, then each end by itself
        for candidates in (group, *([end] for end in group)):
            if chosen.issuperset(candidates):
                continue
            freed = _unneeded(candidates, removed)
            if sum(map(_bytes, candidates)) <= sum(
                sizes.get(n, CALL * is_operator(n)) for n in freed
            ):
                chosen.update(candidates)
                removed |= freed
    # how many bytes small values that free nothing may take in all
    room = sum(sizes.values()) // SHARE
    # the smallest first; only values smaller than the constants that they are computed
    # from
    for end in sorted(set(ends) - chosen, key=lambda end: (_bytes(end), end)):
        if _bytes(end) <= room and _bytes(end) < sum(
            sizes.get(n, 0) for n in ancestors(end)
        ):
            chosen.add(end)
            room -= _bytes(end)
    return [end for end in ends if end in chosen]


def _groups_sharing_nodes(ends: Sequence[Node]) -> list[list[Node]]:
    """Return ``ends`` in groups.

    Two ends that need the same node are in one group. So are two ends that are each in
    a group with a third one.
    """
    # union-find over the ends and all nodes that they need: a node and its parent are in
    # one group, and a root is its own parent
    parent: dict[Node, Node] = {}
    for end in ends:
        parent.setdefault(end, end)
        for node in ancestors(end):
            parent.setdefault(node, node)
            root = find_root(parent, node)
            parent[root] = find_root(parent, end)
    groups: dict[Node, list[Node]] = {}
    for end in ends:
        groups.setdefault(find_root(parent, end), []).append(end)
    return list(groups.values())


def _unneeded(ends: Sequence[Node], removed: Collection[Node]) -> set[Node]:
    """Return the nodes that nothing needs once ``ends`` are replaced by constants.

    Nodes in ``removed`` are left out.

    ``removed``: nodes that go away already, for other ends. They count as users that
    need nothing.
    """
    unneeded: set[Node] = set(ends)
    # users come before their operands
    for node in sorted(ancestors(*ends) - unneeded, reverse=True):
        if all(user in unneeded or user in removed for user in node.users):
            unneeded.add(node)
    return unneeded.difference(removed)


def _bytes(node: Node) -> int:
    """Return the bytes of the tensor that a call returns."""
    val = node.meta["val"]
    return int(val.numel() * val.element_size())


def _used_outside(node: Node, replaced: Collection[Node]) -> bool:
    """Return whether a call returns a tensor that others than ``replaced`` calls use.

    A copy of a constant never counts: its value would only be another copy.
    """
    is_copy = (
        node.target is aten.clone.default
        and node.all_input_nodes[0].op == "placeholder"
    )
    return (
        isinstance(node.meta["val"], torch.Tensor)
        and not is_copy
        and any(u not in replaced for u in node.users)
    )


def _replace(node: Node, constant: Node) -> None:
    """Let users of ``node`` use the placeholder ``constant`` instead.

    If the program returns ``node``, it returns a copy of the constant, because callers
    may write to results.
    """
    if any(u.op == "output" for u in node.users):
        with node.graph.inserting_before(node):
            copy = node.graph.call_function(aten.clone.default, (constant,))
        copy.meta.update(node.meta)
        node.replace_all_uses_with(copy, lambda user: user.op == "output")
    node.replace_all_uses_with(constant)


def _erase_unused(program: ExportedProgram, on_constants: Collection[Node]) -> int:
    """Erase calls without users.

    Returns how many operators among the calls ``on_constants`` were erased.
    """
    erased = 0
    for node in reversed(program.graph.nodes):
        if node.op == "call_function" and not node.users and not has_effect(node):
            erased += node in on_constants and is_operator(node)
            program.graph.erase_node(node)
    return erased
