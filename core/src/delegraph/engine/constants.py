"""Calls on constants alone that a backend leaves to the host are computed now, where that makes no file larger.

A backend that takes such calls gets them: it may compute them when it compiles, or on the device. What it refuses would
be computed again with every call of the program. A value is computed now if it is at most as large as what goes away
with it: the calls, and the constants that only they read. So an embedding of known positions becomes a constant, and
a mask made of numbers, which is a few calls in a file, does not become a table of megabytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from ..exported.call_names import is_operator
from ..exported.constant_values import ConstantValues, ancestors, constant_calls, constants_of, elements_read
from ..exported.node_sets import find_root
from ..exported.shared_memory import near
from ..exported_program import (
    CONSTANT_KINDS,
    add_constant,
    constant_placeholders,
    constant_tensor,
    has_effect,
    placeholders,
)
from ..report.facts import format_size, pluralize
from .partition import Plan

TOGETHER = 64 * 2**20
"""Bytes of all values that are computed now for one plan."""
CALL = 128
"""Bytes that a call takes at least in a program file, with the description of its result."""
SHARE = 128
"""Values that are small beside a constant that stays may take this part of the bytes of all constants, together."""
aten = torch.ops.aten


def compute_constants(plan: Plan, taken_too: bool) -> str:
    """Put constants in the place of calls that need nothing but constants and that ``plan`` leaves to the host.

    ``taken_too``: also of those that the backend takes, for one that cannot be asked, and so never said that it
    computes them when it compiles: it would do so with every call, and see no constant weights behind them.
    Returns what was done, for the report, and "" if there was nothing to do. The program then has to be planned again.
    """
    program, given = plan.program, constant_placeholders(plan.program)
    every = [n for n in program.graph.nodes if n.op == "call_function"]
    calls = every if taken_too else [n for n in every if None in plan.tags.get(n, (None,))]
    if not calls or not any(given.issuperset(elements_read(n)) for n in every):  # most programs
        return ""
    known = constant_calls(program)
    left = known.intersection(calls)
    values, replaced = ConstantValues(constants_of(program)), list[torch.Tensor]()
    for node in _worth_computing([n for n in calls if n in left and _is_end(n, left)], _sizes(program)):
        value = values.of(node)
        if value is not None and value.nbytes + sum(v.nbytes for v in replaced) <= TOGETHER:
            constant = add_constant(program, value, f"{node.name}_computed")
            values.by_node[constant] = value
            _replace(node, constant)
            replaced.append(value)
    if not replaced:
        return ""
    count = pluralize(_erase_unused(program, known), "operator")
    return f"{count} on constants alone computed while lowering, {format_size(sum(v.nbytes for v in replaced))}"


def _sizes(program: ExportedProgram) -> dict[Node, int]:
    """Bytes of each constant of a program; 0 for those whose memory others share, which a file has once."""
    tensors = {n: constant_tensor(program, s) for n, s in placeholders(program) if s.kind in CONSTANT_KINDS}
    shared = {n for pair in near(tensors) for n in pair if tensors[n].numel()}
    return {n: 0 if n in shared else t.numel() * t.element_size() for n, t in tensors.items()}


def _worth_computing(ends: Sequence[Node], sizes: Mapping[Node, int]) -> list[Node]:
    """Those of ``ends`` whose values take no more bytes than the calls and constants that nobody needs any more then.

    Ends that share a call or a constant are weighed together first, since that may go away with all of them only.
    Then small ones for which nothing goes away, such as the norms of a weight. ``sizes``: bytes of constants.
    """
    chosen: set[Node] = set()
    gone: set[Node] = set()
    for group in _connected(ends):
        for tried in (group, *([end] for end in group)):
            if chosen.issuperset(tried):
                continue
            freed = _unneeded(tried, gone)
            if sum(map(_bytes, tried)) <= sum(sizes.get(n, CALL * is_operator(n)) for n in freed):
                chosen.update(tried)
                gone |= freed
    room = sum(sizes.values()) // SHARE
    for end in sorted(set(ends) - chosen, key=lambda end: (_bytes(end), end)):
        if _bytes(end) <= room and _bytes(end) < sum(sizes.get(n, 0) for n in ancestors(end)):
            chosen.add(end)
            room -= _bytes(end)
    return [end for end in ends if end in chosen]


def _connected(ends: Sequence[Node]) -> list[list[Node]]:
    """``ends`` in groups: two that need the same node are in one."""
    parent: dict[Node, Node] = {}
    for end in ends:
        parent.setdefault(end, end)
        for node in ancestors(end):
            parent[find_root(parent, parent.setdefault(node, node))] = find_root(parent, end)
    groups: dict[Node, list[Node]] = {}
    for end in ends:
        groups.setdefault(find_root(parent, end), []).append(end)
    return list(groups.values())


def _unneeded(ends: Sequence[Node], gone: Collection[Node]) -> set[Node]:
    """What nobody needs once ``ends`` are constants, beyond what is ``gone`` already."""
    unneeded: set[Node] = set(ends)
    for node in sorted(ancestors(*ends) - unneeded, reverse=True):  # users before what they use
        if all(user in unneeded or user in gone for user in node.users):
            unneeded.add(node)
    return unneeded.difference(gone)


def _bytes(node: Node) -> int:
    val = node.meta["val"]
    return int(val.numel() * val.element_size())


def _is_end(node: Node, left: Collection[Node]) -> bool:
    """Whether anything uses the value besides calls that are replaced as well."""
    copies = node.target is aten.clone.default and node.all_input_nodes[0].op == "placeholder"
    return isinstance(node.meta["val"], torch.Tensor) and not copies and any(u not in left for u in node.users)


def _replace(node: Node, constant: Node) -> None:
    """Let users of ``node`` use ``constant``. A program returns a copy of it, since callers may write to results."""
    if any(u.op == "output" for u in node.users):
        with node.graph.inserting_before(node):
            copy = node.graph.call_function(aten.clone.default, (constant,))
        copy.meta.update(node.meta)
        node.replace_all_uses_with(copy, lambda user: user.op == "output")
    node.replace_all_uses_with(constant)


def _erase_unused(program: ExportedProgram, known: Collection[Node]) -> int:
    """Erase calls that nobody uses any more; returns how many operators on constants they were."""
    erased = 0
    for node in reversed(program.graph.nodes):
        if node.op == "call_function" and not node.users and not has_effect(node):
            erased += node in known and is_operator(node)
            program.graph.erase_node(node)
    return erased
