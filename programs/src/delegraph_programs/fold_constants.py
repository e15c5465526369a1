"""Computes calls on constants alone, where that makes no file larger.

A call is computed if its value is at most as large as the calls and constants that the
program no longer needs then. So the embedding of known positions becomes a constant. A
mask that a few calls make of a few numbers does not become a table of megabytes.
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
    add_constant,
    constant_placeholders,
    constant_tensors,
    erase_unused,
)
from .memory_overlap import overlapping
from .reachable_nodes import find_root

_LARGEST_TOTAL = 64 * 2**20
"""The most bytes of all values together that one ``fold_constants`` computes."""
_BYTES_OF_CALL = 128
"""An estimate: the bytes of a call in a program file, with the type of its result."""
_PART_FOR_SMALL_VALUES = 128
"""Small values may together take a 128th of the bytes of all constants."""
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
    # a quick answer in the usual case: no call reads constants alone
    if not any(constants.issuperset(elements_read(n)) for n in calls):
        return None
    on_constants = constant_calls(program)
    candidates = {n for n in calls if n in on_constants and may_fold(n)}
    # Replace only calls whose values other calls use. The calls before them then have
    # no users, and are erased.
    ends = [n for n in calls if n in candidates and _used_outside(n, candidates)]
    values = ConstantValues(constants_of(program))
    total = 0
    is_changed = False
    for node in _worth_computing(ends, _constant_bytes(program)):
        value = values.of(node)
        if value is not None and total + value.nbytes <= _LARGEST_TOTAL:
            total += value.nbytes
            constant = add_constant(program, value, f"{node.name}_computed")
            # calls that now read this constant can be computed, too
            values.by_node[constant] = value
            _replace(node, constant)
            is_changed = True
    if not is_changed:
        return None
    erased = erase_unused(program.graph)
    count = sum(n in on_constants and is_operator(n) for n in erased)
    return FoldedConstants(count, total)


def _constant_bytes(program: ExportedProgram) -> dict[Node, int]:
    """Return constant -> its bytes.

    Constants that share memory count 0: a file stores that memory once, and other
    constants may need it.
    """
    tensors = constant_tensors(program)
    shared = {n for pair in overlapping(tensors) for n in pair if tensors[n].numel()}
    return {
        n: 0 if n in shared else t.numel() * t.element_size()
        for n, t in tensors.items()
    }


def _worth_computing(ends: Sequence[Node], sizes: Mapping[Node, int]) -> list[Node]:
    """Return the ``ends`` whose values take no more bytes than the nodes that they free.

    ``ends``: calls whose values are used elsewhere. A node is free if only chosen ends
    need it. ``sizes``: the bytes of constants. Ends that share a call or a constant are
    weighed together first, because only all of them together free the shared node.
    Small values that free nothing, such as the norms of a weight, are chosen last
    (``_PART_FOR_SMALL_VALUES``).
    """
    chosen: set[Node] = set()
    freed: set[Node] = set()  # by the ends that are chosen so far
    for group in _groups_sharing_nodes(ends):
        # together, then each end by itself
        for candidates in (group, *([end] for end in group)):
            if chosen.issuperset(candidates):
                continue
            newly_freed = _freed_by(candidates, freed)
            saved = sum(sizes.get(n, _bytes_of_call(n)) for n in newly_freed)
            if sum(map(_bytes, candidates)) <= saved:
                chosen.update(candidates)
                freed |= newly_freed
    room = sum(sizes.values()) // _PART_FOR_SMALL_VALUES
    # the smallest first, and by position in the graph
    for end in sorted(set(ends) - chosen, key=lambda end: (_bytes(end), end)):
        read = sum(sizes.get(n, 0) for n in ancestors(end))
        if _bytes(end) <= room and _bytes(end) < read:
            chosen.add(end)
            room -= _bytes(end)
    return [end for end in ends if end in chosen]


def _groups_sharing_nodes(ends: Sequence[Node]) -> list[list[Node]]:
    """Return ``ends`` in groups: two ends that need the same node are in one group."""
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


def _freed_by(ends: Sequence[Node], already: Collection[Node]) -> set[Node]:
    """Return the nodes that nothing needs once ``ends`` are replaced by constants.

    ``already``: nodes that other ends free. They are left out, and need nothing.
    """
    freed: set[Node] = set(ends)
    # users first, then their operands
    for node in sorted(ancestors(*ends) - freed, reverse=True):
        if all(user in freed or user in already for user in node.users):
            freed.add(node)
    return freed.difference(already)


def _bytes_of_call(node: Node) -> int:
    """Return how many bytes a call takes in a file; 0 if it is no operator there."""
    return _BYTES_OF_CALL if is_operator(node) else 0


def _bytes(node: Node) -> int:
    """Return the bytes of the tensor that a call returns."""
    val = node.meta["val"]
    return int(val.numel() * val.element_size())


def _used_outside(node: Node, replaced: Collection[Node]) -> bool:
    """Return whether a call returns a tensor that a user outside of ``replaced`` needs.

    False for a copy of a constant, since its value would only be another copy.
    """
    if not isinstance(node.meta["val"], torch.Tensor):
        return False
    if (
        node.target is aten.clone.default
        and node.all_input_nodes[0].op == "placeholder"
    ):
        return False
    return any(user not in replaced for user in node.users)


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
