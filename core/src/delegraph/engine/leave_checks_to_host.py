"""Leaves checks, such as ``aten._assert_async``, to the host.

Checks are assertions, and calls that only compute operands of assertions. The host
checks the values that it has: inputs, its own results, and the results of delegates. To
check another value, a delegate would have to return it in each run. Such a check is
dropped, with a note in the report.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from delegraph_programs import erase, find_checks, line_of
from delegraph_programs.assertion_calls import ASSERTIONS
from torch.fx import Node

from ..report.values_as_text import pluralize
from .partition_records import ON_HOST, Plan


def settle_checks(plan: Plan) -> tuple[bool, str]:
    """Leave checks of the host's values to the host, and erase other checks.

    A delegated check that moves to the host is marked (``ON_HOST``): the next plan
    leaves it on the host, even if the partitioner tags it. Returns whether the program
    must be planned again, and a note for the report. The note is "" if no assertion was
    erased.
    """
    graph = plan.program.graph
    checks = find_checks(graph)
    dropped = _uncomputable(plan, checks)
    # delegated checks that the host computes from now on
    moved = checks.intersection(plan.tags) - dropped
    for node in moved:
        node.meta[ON_HOST] = True
    note = _note([n for n in graph.nodes if n in dropped and n.target in ASSERTIONS])
    erase(graph, dropped)
    return bool(moved or dropped), note


def _uncomputable(plan: Plan, checks: Collection[Node]) -> set[Node]:
    """Return the checks that need a value which no delegate returns.

    Calls that only compute operands of these checks are among them.
    """
    provider = plan.provider
    # values that no delegate returns, because no call outside of their partition uses
    # them, except checks
    hidden: set[Node] = set()
    for value, partition in provider.items():
        if value not in checks:
            users = [user for user in value.users if user not in checks]
            if all(provider.get(user) is partition for user in users):
                hidden.add(value)
    in_order = [n for n in plan.program.graph.nodes if n in checks]
    dropped: set[Node] = set()
    for node in in_order:
        if any(used in dropped or used in hidden for used in node.all_input_nodes):
            dropped.add(node)
    for node in reversed(in_order):  # users come first
        # the node only computes operands of dropped checks
        if node.target not in ASSERTIONS and dropped.issuperset(node.users):
            dropped.add(node)
    return dropped


def _note(assertions: Sequence[Node]) -> str:
    """Return the note about dropped ``assertions``, which are in graph order.

    Returns "" if there are none.
    """
    # the user's lines, each once; None for an unknown line
    lines = dict.fromkeys(map(line_of, assertions))
    if not lines:
        return ""
    known = [line for line in lines if line]
    first = f", first at {known[0]}" if known else ""
    return (
        f"{pluralize(len(lines), 'check')} of values inside of delegates dropped{first}"
    )
