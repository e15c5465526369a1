"""Calls on constants alone that a backend leaves to the host are computed now, where that makes no file larger.

A backend may take such calls: then it computes them when it compiles, or on the device. A call that it refuses would be
computed again whenever the program is called. It is computed now if its value is at most as large as what goes away
with it: the calls, and the constants that only they read. So the embedding of known positions becomes a constant; but a
mask that is made of a few numbers, by calls that take few bytes in a file, does not become a table of megabytes.
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
"""The most bytes of all values together that are computed now for one plan."""
CALL = 128
"""How many bytes a call is taken to need in a program file, with the description of its result."""
SHARE = 128
"""Values smaller than what they are computed from may together take this part of the bytes of all constants."""
aten = torch.ops.aten


def compute_constants(plan: Plan, taken_too: bool) -> str:
    """Compute calls that need nothing but constants and that ``plan`` leaves to the host; constants take their place.

    ``taken_too``: also compute calls that the backend takes. That is for a backend that cannot be asked, and so never
    said that it computes them when it compiles: it would compute them in every call, and behind them see no constant
    weights. Returns what was done, for the report; "" if nothing was. The program has to be planned again afterwards.
    """
    program, given = plan.program, constant_placeholders(plan.program)
    every = [n for n in program.graph.nodes if n.op == "call_function"]
    calls = every if taken_too else [n for n in every if None in plan.tags.get(n, (None,))]
    if not calls or not any(given.issuperset(elements_read(n)) for n in every):  # so it is with most programs
        return ""
    known = constant_calls(program)
    left = known.intersection(calls)
    values, replaced = ConstantValues(constants_of(program)), list[torch.Tensor]()
    for node in _worth_computing([n for n in calls if n in left and _used_outside(n, left)], _constant_bytes(program)):
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


def _constant_bytes(program: ExportedProgram) -> dict[Node, int]:
    """The bytes of each constant of a program; 0 for constants that share memory, which a file has only once."""
    tensors = {n: constant_tensor(program, s) for n, s in placeholders(program) if s.kind in CONSTANT_KINDS}
    shared = {n for pair in near(tensors) for n in pair if tensors[n].numel()}
    return {n: 0 if n in shared else t.numel() * t.element_size() for n, t in tensors.items()}


def _worth_computing(ends: Sequence[Node], sizes: Mapping[Node, int]) -> list[Node]:
    """Those of ``ends`` whose values take no more bytes than what nothing needs any more once they are computed.

    ``ends`` are calls whose values are used outside; ``sizes`` are the bytes of constants. Ends that share a call or a
    constant are weighed together first, because the shared node may go away only with all of them. In the end small
    values are chosen for which nothing goes away, such as the norms of a weight, up to a share of all constants
    (``SHARE``).
    """
    chosen: set[Node] = set()
    gone: set[Node] = set()
    for group in _groups_sharing_nodes(ends):
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


def _groups_sharing_nodes(ends: Sequence[Node]) -> list[list[Node]]:
    """``ends`` in groups: two that need the same node are in one group."""
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
    """The nodes that nothing needs once ``ends`` are constants, without those that are ``gone`` already."""
    unneeded: set[Node] = set(ends)
    for node in sorted(ancestors(*ends) - unneeded, reverse=True):  # users before what they use
        if all(user in unneeded or user in gone for user in node.users):
            unneeded.add(node)
    return unneeded.difference(gone)


def _bytes(node: Node) -> int:
    """The bytes of the value that the call returns."""
    val = node.meta["val"]
    return int(val.numel() * val.element_size())


def _used_outside(node: Node, left: Collection[Node]) -> bool:
    """Whether a tensor is used by something else than ``left``, the calls that are replaced as well.

    A copy of a constant does not count: to compute it would only be another copy.
    """
    copies = node.target is aten.clone.default and node.all_input_nodes[0].op == "placeholder"
    return isinstance(node.meta["val"], torch.Tensor) and not copies and any(u not in left for u in node.users)


def _replace(node: Node, constant: Node) -> None:
    """Let users of ``node`` use ``constant``.

    The program itself returns a copy, because callers may write to results.
    """
    if any(u.op == "output" for u in node.users):
        with node.graph.inserting_before(node):
            copy = node.graph.call_function(aten.clone.default, (constant,))
        copy.meta.update(node.meta)
        node.replace_all_uses_with(copy, lambda user: user.op == "output")
    node.replace_all_uses_with(constant)


def _erase_unused(program: ExportedProgram, known: Collection[Node]) -> int:
    """Erase calls without users. Returns how many of them were operators among ``known``, the calls on constants."""
    erased = 0
    for node in reversed(program.graph.nodes):
        if node.op == "call_function" and not node.users and not has_effect(node):
            erased += node in known and is_operator(node)
            program.graph.erase_node(node)
    return erased
