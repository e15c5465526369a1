"""Finds the calls of a lowered graph that the host computes, and why no backend took
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from delegraph_programs import Source, find_checks, is_operator, line_of, operator_name
from delegraph_programs.call_names import LEFT, handle_of, unpacked
from delegraph_programs.exported_program import CALL_DELEGATE
from torch.fx import Node

from ..partitioner.interface import Refusal

if TYPE_CHECKING:
    from ..delegates.find_delegates import DelegateInfo
    from .rows import Reasons


def host_calls(nodes: Iterable[Node]) -> list[Node]:
    """Return the calls among ``nodes`` that compute on the host.

    Calls of delegates, the unpacking of their results and casts at their borders are
    left out.
    """
    excluded: set[Node] = set()
    calls: list[Node] = []
    for node in nodes:
        if node.op != "call_function":
            continue
        # "boundary" marks casts at the border of a delegate; ``unpacked`` returns the
        # call of which ``node`` takes one result, or None
        if (
            node.target is CALL_DELEGATE
            or "boundary" in node.meta
            or unpacked(node) in excluded
        ):
            excluded.add(node)
        else:
            calls.append(node)
    return calls


class LeftOperator(NamedTuple):
    """An operator that is left to the host: its name, and its call.

    If the host decomposes the operator, ``node`` is the first of the new calls.
    """

    operator: str
    node: Node


def left_operators(nodes: Iterable[Node]) -> list[LeftOperator]:
    """Return the operators among ``nodes`` that are left to the host.

    An operator that the host decomposes is listed once, because backends were asked
    about it as a whole. Calls that only check something (``find_checks``) are left out,
    because no backend is expected to have them.
    """
    # call, or the mark that all parts of a decomposed call have -> the operator
    operators: dict[Any, LeftOperator] = {}
    calls = host_calls(nodes)
    checks: set[Node] = set()
    for graph in {node.graph for node in calls}:
        checks |= find_checks(graph)
    for node in calls:
        if is_operator(node) and node not in checks:
            # None if ``node`` is no part of a decomposed call
            mark = node.meta.get(LEFT)
            if mark is None:
                operators[node] = LeftOperator(operator_name(node), node)
            else:
                _, _, decomposed = mark  # (debug handle, name, operator) of that call
                operators.setdefault(mark, LeftOperator(decomposed, node))
    return list(operators.values())


def add_up(figures: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sum of several mappings from names to amounts, name by name."""
    total: dict[str, float] = {}
    for amounts in figures:
        for name, amount in amounts.items():
            total[name] = total.get(name, 0) + amount
    return total


def figures_by_line(
    delegates: Iterable[DelegateInfo],
) -> dict[tuple[Source, ...], dict[str, float]]:
    """Return lines of the user's program -> the amounts that backends expect for them.

    For example: ``(line 3, line 4)`` -> ``{"cycles": 1200}``, for operators of two
    lines that a backend fused. The key is () if no line is known. Entries with a larger
    first amount come first.
    """
    # a backend gives amounts for its own identifiers; ``debug_handle_map`` has the
    # debug handles of the operators of each identifier
    amounts_of: dict[tuple[Source, ...], list[Mapping[str, float]]] = {}
    for info in delegates:
        # debug handle -> line of the operator, or None
        lines = {handle_of(node): line_of(node) for node in info.nodes}
        handles = info.debug_handle_map
        for identifier, amounts in info.figures.items():
            operator_lines = map(lines.get, handles.get(identifier, ()))
            sources = dict.fromkeys(filter(None, operator_lines))
            amounts_of.setdefault(tuple(sources), []).append(amounts)
    total = {sources: add_up(amounts) for sources, amounts in amounts_of.items()}
    # by the first amount of each entry, 0 if it has none
    ordered = sorted(total, key=lambda key: -next(iter(total[key].values()), 0))
    return {sources: total[sources] for sources in ordered}


NOT_TAGGED = "not tagged by its partitioner"
"""The reason for a call that a partitioner neither tagged nor refused."""


def reasons_of(backend: str, refusals: Iterable[Refusal]) -> Reasons:
    """Return the reasons in ``refusals``, by the keys of ``Reasons``.

    The partitioner of ``backend`` made these refusals.
    """
    return {
        (backend, handle_of(r.node), operator_name(r.node)): r.reason for r in refusals
    }


class RefusedOperator(NamedTuple):
    """An operator that a backend refused, and the reason.

    ``part_of``: the operator that was decomposed to it; "" if none was.
    """

    operator: str
    reason: str
    part_of: str


def find_refusal(node: Node, backend: str, reasons: Reasons) -> RefusedOperator:
    """Return why ``backend`` did not take ``node``, a call of the host.

    For example, ``linear`` was decomposed to ``addmm``, and that to ``mm``, which is
    ``node``. The backend may have refused any of the three. Returns the last step that
    has a reason, so ``mm`` is tried first. If no step has a reason, returns the first
    step, ``linear``, with the reason NOT_TAGGED.
    """
    # the earlier steps of the decomposition; () if ``node`` was in the user's program
    earlier: tuple[str, ...] = node.meta.get("decomposed_from", ())
    steps = (*earlier, operator_name(node))
    for depth, operator in enumerate(reversed(steps)):
        reason = reasons.get((backend, handle_of(node), operator))
        if reason is not None:
            is_first_step = depth == len(earlier)
            part_of = "" if is_first_step else steps[0]
            return RefusedOperator(operator, reason, part_of)
    return RefusedOperator(steps[0], NOT_TAGGED, part_of="")


def refused_by(
    node: Node, reasons: Reasons, backends: Sequence[str]
) -> list[tuple[str, str]]:
    """Return (backend, reason why it did not take ``node``) for each of ``backends``.

    ``node``: a call of the host.
    """
    return [
        (backend, full_reason(find_refusal(node, backend, reasons)))
        for backend in backends
    ]


def full_reason(refusal: RefusedOperator) -> str:
    """Return the reason, followed by "(part of ...)" if there is a ``part_of``."""
    return (
        f"{refusal.reason} (part of {refusal.part_of})"
        if refusal.part_of
        else refusal.reason
    )
