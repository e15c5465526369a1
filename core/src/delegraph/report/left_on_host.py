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
    # call of the host, or mark of the call that was decomposed to it -> the operator
    operators: dict[Any, LeftOperator] = {}
    calls = host_calls(nodes)
    checks: set[Node] = set()
    for graph in {node.graph for node in calls}:
        checks |= find_checks(graph)
    for node in calls:
        if is_operator(node) and node not in checks:
            # the mark (debug handle, name, operator) of the call that was decomposed to
            # ``node``; None if none was
            mark = node.meta.get(LEFT)
            if mark is None:
                operators[node] = LeftOperator(operator_name(node), node)
            else:
                operators.setdefault(mark, LeftOperator(mark[-1], node))
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

    Amounts are such as ``{"cycles": 1200}``. Backends give them for debug identifiers,
    each of which identifies some operators. The key is the tuple of the lines of these
    operators: one line, or several for a fusion, because the share of each line is not
    known. It is () if no line is known. Entries with a larger first amount come first.
    """
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
    return dict(
        sorted(total.items(), key=lambda item: -next(iter(item[1].values()), 0))
    )


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

    ``node`` may come from a decomposition: ``linear`` -> ``addmm`` -> ``mm``, for
    example. The backend refused the node's operator, or one of the operators outside of
    it. The innermost one that ``reasons`` has is returned. If ``reasons`` has none, the
    outermost one is returned with the reason NOT_TAGGED.
    """
    # operators that were decomposed, outermost first
    outer: tuple[str, ...] = node.meta.get("decomposed_from", ())
    for depth, op in enumerate((operator_name(node), *reversed(outer))):
        reason = reasons.get((backend, handle_of(node), op))
        if reason is not None:
            # the outermost operator is not part of another one
            is_outermost = depth == len(outer)
            return RefusedOperator(op, reason, "" if is_outermost else outer[0])
    return RefusedOperator(outer[0] if outer else operator_name(node), NOT_TAGGED, "")


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
    """Return the reason, with the operator that was decomposed to the refused one."""
    return (
        f"{refusal.reason} (part of {refusal.part_of})"
        if refusal.part_of
        else refusal.reason
    )
