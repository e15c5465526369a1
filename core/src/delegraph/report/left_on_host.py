"""Facts about the calls of a lowered graph: which calls the host computes, and why no
backend took these.
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
    # calls of delegates, the unpacking of their results, and casts at their borders
    excluded: set[Node] = set()
    calls: list[Node] = []
    for node in (n for n in nodes if n.op == "call_function"):
        # the engine marks the casts that it inserts at the border of a delegate as
        # "boundary"; ``unpacked``: the call of which ``node`` takes one result, None
        # for other nodes
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
    """An operator that is left to the host: its name, and the first of the calls to
    which the host decomposes it.
    """

    operator: str
    node: Node


def left_operators(nodes: Iterable[Node]) -> list[LeftOperator]:
    """Return the operators among ``nodes`` that are left to the host.

    An operator that the host decomposes is listed once, because backends were asked
    about it as a whole. Calls that only check something (``find_checks``) are left out,
    because no backend is expected to have them.
    """
    # a call, or the key of the call that was decomposed to it -> the operator
    operators: dict[Any, LeftOperator] = {}
    calls = host_calls(nodes)
    checks: set[Node] = set()
    for graph in {node.graph for node in calls}:
        checks |= find_checks(graph)
    for node in calls:
        if is_operator(node) and node not in checks:
            # (debug handle, name, operator) of the call that was decomposed to ``node``
            # and others; None if none was
            whole = node.meta.get(LEFT)
            if whole is None:
                operators[node] = LeftOperator(operator_name(node), node)
            else:
                operators.setdefault(whole, LeftOperator(whole[-1], node))
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
    """Return lines of the user's program -> amounts by name, such as cycles, that
    backends expect for them, largest first.

    Backends give amounts for delegate debug identifiers. Each identifies some
    operators. The key of their amounts is the tuple of the lines of these operators:
    one line, or several for a fusion, because the share of each line is not known. The
    key is () if no line is known. The first amount decides the order.
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
    """Return the reasons in ``refusals``, which one backend's partitioner made, by
    backend, debug handle and operator.
    """
    return {
        (backend, handle_of(r.node), operator_name(r.node)): r.reason for r in refusals
    }


class RefusedOperator(NamedTuple):
    """An operator that a backend refused, the reason, and the operator that was
    decomposed to it ("" if none was).
    """

    operator: str
    reason: str
    part_of: str


def find_refusal(node: Node, backend: str, reasons: Reasons) -> RefusedOperator:
    """Return why ``backend`` did not take ``node``, a call of the host.

    The backend refused the node's operator, or one of the operators that were
    decomposed to it; the innermost one that ``reasons`` has is returned. If ``reasons``
    has none, the outermost one is returned with the reason NOT_TAGGED.
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
    """Return (backend, reason) for each of ``backends``. The reason is why the backend
    did not take ``node``, a call of the host.
    """
    return [
        (backend, full_reason(find_refusal(node, backend, reasons)))
        for backend in backends
    ]


def full_reason(refusal: RefusedOperator) -> str:
    """Return the reason of ``refusal``. If another operator was decomposed to the
    refused one, its name follows in brackets.
    """
    return (
        f"{refusal.reason} (part of {refusal.part_of})"
        if refusal.part_of
        else refusal.reason
    )
