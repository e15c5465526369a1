"""Facts about the calls of a lowered graph: their operators, which the host computes, and why it has to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from torch._ops import OpOverload
from torch.fx import Node

from ..exported_program import CALL_DELEGATE
from ..partitioner.contract import Refusal
from ..source import source_of
from .rows import Reasons, RefusalRow


def host_calls(nodes: Iterable[Node]) -> list[Node]:
    """Calls that the host computes: not delegates, nor what unpacks them or casts at their border."""
    moved: set[Node] = set()
    computed: list[Node] = []
    for node in (n for n in nodes if n.op == "call_function"):
        unpacks = getattr(node.target, "__name__", "") == "getitem" and node.args[0] in moved
        if node.target is CALL_DELEGATE or "boundary" in node.meta or unpacks:
            moved.add(node)
        else:
            computed.append(node)
    return computed


def operator_name(node: Node) -> str:
    """``aten.add.Tensor`` and the like."""
    if isinstance(node.target, OpOverload):
        return str(node.target)
    return getattr(node.target, "__name__", str(node.target))


def count_operators(nodes: Iterable[Node]) -> dict[str, int]:
    """Operator -> number of calls; unpacking results is no operator."""
    names = (operator_name(n) for n in nodes)
    return dict(Counter(name for name in names if name != "getitem"))


NOT_TAGGED = "not tagged by its partitioner"
"""The reason for a call that a partitioner neither tagged nor refused."""


def reasons_of(backend: str, refusals: Iterable[Refusal]) -> Reasons:
    """The reasons of one partitioner."""
    return {(backend, r.node.meta.get("debug_handle", 0), operator_name(r.node)): r.reason for r in refusals}


def refusal_rows(method: str, left: Sequence[Node], reasons: Reasons, backends: Sequence[str]) -> list[RefusalRow]:
    """One row for each operator, backend and reason.

    What was decomposed for the host alone counts once, as the operator that the backend was asked about.
    """
    calls: dict[tuple[str, str, str], dict[Any, Node]] = {}
    for node in left:
        if operator_name(node) != "getitem":
            for backend in backends:
                op, why = _refused(node, backend, reasons)
                one = node if op == operator_name(node) else node.meta["debug_handle"]
                calls.setdefault((op, backend, why), {}).setdefault(one, node)
    rows = []
    for (op, backend, why), nodes in calls.items():
        first = next(filter(None, map(source_of, nodes.values())), None)
        rows.append(RefusalRow(method, op, backend, why, len(nodes), first))
    return rows


def _refused(node: Node, backend: str, reasons: Reasons) -> tuple[str, str]:
    """The operator that ``backend`` refused here, and why: that of ``node``, or one that was decomposed to it."""
    around: tuple[str, ...] = node.meta.get("decomposed_from", ())
    for depth, op in enumerate((operator_name(node), *reversed(around))):
        why = reasons.get((backend, node.meta.get("debug_handle", 0), op))
        if why is not None:
            return op, f"{why} (part of {around[0]})" if around[: len(around) - depth] else why
    return around[0] if around else operator_name(node), NOT_TAGGED


def refused_by(node: Node, reasons: Reasons, backends: Sequence[str]) -> list[tuple[str, str, str]]:
    """(Operator, backend, reason) of every backend that was asked about ``node``, a call of the host, and refused."""
    refused = [(backend, *_refused(node, backend, reasons)) for backend in backends]
    return [(op, backend, why) for backend, op, why in refused]
