"""Leaves calls that only check something to the host.

No backend is asked for them, and no delegate returns values for them. ExecuTorch drops assertions. Here the host makes
those about values that it has: inputs, what it computes itself, and what delegates return. To check a value inside of a
delegate, the delegate would have to return it in each call, on a device too; such a check is dropped, and the report
says so.
"""

from __future__ import annotations

from torch.fx import Node

from ..exported.checks import ASSERTIONS, erase, find_checks
from ..report.facts import pluralize
from ..source import source_of
from .partition import ON_HOST, Plan


def settle_checks(plan: Plan) -> tuple[bool, str]:
    """Leave checks of the host's values to the host, and drop checks of values inside of delegates.

    Checks are calls that only check something. Those that were delegated and stay are marked (``ON_HOST``), so that no
    partition gets them when the program is planned again; those that are dropped are erased from the program. Returns
    whether the program has to be planned again, and a note for the report ("" if nothing was dropped).
    """
    program, provider = plan.program, plan.provider
    checks = find_checks(program.graph)
    # ``hidden``: delegated values that nothing outside of their own delegate uses, but for checks
    provided = {n: partition for n, partition in provider.items() if n not in checks}
    hidden = {n for n, own in provided.items() if all(u in checks or provider.get(u) is own for u in n.users)}
    # the host cannot compute a check of a hidden value, nor one that uses a dropped check
    dropped: set[Node] = set()
    for node in (n for n in program.graph.nodes if n in checks):
        if any(used in dropped or used in hidden for used in node.all_input_nodes):
            dropped.add(node)
    for node in reversed([n for n in program.graph.nodes if n in checks - dropped]):
        if node.target not in ASSERTIONS and dropped.issuperset(node.users):  # it only served dropped checks
            dropped.add(node)
    moved = checks.intersection(plan.tags) - dropped
    for node in moved:
        node.meta[ON_HOST] = True
    # the user's lines of dropped assertions, each once; None stands for those without a known line
    lines = dict.fromkeys(source_of(n) for n in program.graph.nodes if n in dropped and n.target in ASSERTIONS)
    note = f"{pluralize(len(lines), 'check')} of values inside of delegates dropped" if lines else ""
    known = [line for line in lines if line]
    note += f", first at {known[0]}" if known else ""
    erase(program.graph, dropped)
    return bool(moved or dropped), note
