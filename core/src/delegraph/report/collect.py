"""Facts about the calls of a lowered graph: their operators, which of them the host computes, and why it has to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.fx import Node

from ..exported.call_names import LEFT, is_operator, operator_name, unpacked
from ..exported.checks import find_checks
from ..exported_program import CALL_DELEGATE
from ..partitioner.contract import Refusal
from ..source import Source, source_of

if TYPE_CHECKING:
    from ..delegates.delegates import DelegateInfo
    from .rows import Reasons


def host_calls(nodes: Iterable[Node]) -> list[Node]:
    """The calls that the host makes, without delegates, what unpacks these, and casts at their borders."""
    moved: set[Node] = set()
    computed: list[Node] = []
    for node in (n for n in nodes if n.op == "call_function"):
        if node.target is CALL_DELEGATE or "boundary" in node.meta or unpacked(node) in moved:
            moved.add(node)
        else:
            computed.append(node)
    return computed


class Left(NamedTuple):
    """An operator that is left to the host: its name, and the first of the calls that it has become there."""

    operator: str
    node: Node


def left_operators(nodes: Iterable[Node]) -> list[Left]:
    """The operators that are left to the host.

    One that the host decomposes counts as one operator, because backends were asked about it as a whole. Calls that
    only check something (`find_checks`) do not count, because no backend is supposed to have them.
    """
    found: dict[Any, Left] = {}
    calls = host_calls(nodes)
    checks = {check for graph in {n.graph for n in calls} for check in find_checks(graph)}
    for node in calls:
        if is_operator(node) and node not in checks:
            whole = node.meta.get(LEFT)
            found.setdefault(whole or node, Left(whole[-1] if whole else operator_name(node), node))
    return list(found.values())


def add_up(figures: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Amounts by name, of several."""
    total: dict[str, float] = {}
    for amounts in figures:
        for name, amount in amounts.items():
            total[name] = total.get(name, 0) + amount
    return total


def figures_by_line(delegates: Iterable[DelegateInfo]) -> dict[tuple[Source, ...], dict[str, float]]:
    """Lines of the user's program -> the amounts that backends expect for what stands there, the largest first.

    The debug handles of an identifier lead to its operators. One that stands for several lines, such as a fusion, is
    counted for all of them together and for none alone: nobody knows its shares.
    """
    found: dict[tuple[Source, ...], list[Mapping[str, float]]] = {}
    for info in delegates:
        lines = {n.meta.get("debug_handle", 0): source for n in info.nodes if (source := source_of(n)) is not None}
        handles = info.debug_handle_map
        for identifier, amounts in info.figures.items():
            sources = dict.fromkeys(lines[handle] for handle in handles.get(identifier, ()) if handle in lines)
            found.setdefault(tuple(sources), []).append(amounts)
    total = {sources: add_up(amounts) for sources, amounts in found.items()}
    return dict(sorted(total.items(), key=lambda item: -next(iter(item[1].values()), 0)))


NOT_TAGGED = "not tagged by its partitioner"
"""The reason for a call that a partitioner neither tagged nor refused."""


def reasons_of(backend: str, refusals: Iterable[Refusal]) -> Reasons:
    """The reasons in the refusals of one backend's partitioner."""
    return {(backend, r.node.meta.get("debug_handle", 0), operator_name(r.node)): r.reason for r in refusals}


class Refused(NamedTuple):
    """An operator that a backend did not take, why, and the operator that it is a part of ("" if it is whole)."""

    operator: str
    reason: str
    part_of: str


def refused(node: Node, backend: str, reasons: Reasons) -> Refused:
    """What ``backend`` refused here: ``node``, a call of the host, or an operator of which ``node`` is a part."""
    around: tuple[str, ...] = node.meta.get("decomposed_from", ())
    for depth, op in enumerate((operator_name(node), *reversed(around))):
        why = reasons.get((backend, node.meta.get("debug_handle", 0), op))
        if why is not None:
            return Refused(op, why, around[0] if around[: len(around) - depth] else "")
    return Refused(around[0] if around else operator_name(node), NOT_TAGGED, "")


def refused_by(node: Node, reasons: Reasons, backends: Sequence[str]) -> list[tuple[str, str]]:
    """(Backend, reason) for each backend that was asked about ``node``, a call of the host."""
    return [(backend, in_full(refused(node, backend, reasons))) for backend in backends]


def in_full(found: Refused) -> str:
    """The reason, with the operator that it is a part of."""
    return f"{found.reason} (part of {found.part_of})" if found.part_of else found.reason
