"""Facts about a lowered graph, for its report: counts of operators, and why nodes stayed on the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from ..discovery.registry import Registry
from ..exported_program import CALL_DELEGATE
from ..partitioner.contract import Refusal
from ..program.delegates import DelegateInfo
from ..source import source_of
from .model import DelegateRow, Origin, Reasons, RefusalRow, Report


def collect_report(
    origin: Origin,
    nodes: Mapping[str, Iterable[Node]],
    registry: Registry,
    notes: Sequence[str],
    seconds: dict[str, float],
) -> Report:
    """The report of the programs and delegates in ``origin``; ``nodes``: those of each method, subgraphs included."""
    report = Report(notes=list(notes), seconds=seconds, origin=origin)
    report.delegates = [_delegate_row(info, registry) for info in origin.delegates]
    for method in origin.programs:
        left = host_calls(nodes[method])
        report.host[method] = count_operators(left)
        report.refusals += refusal_rows(method, left, origin.reasons.get(method, {}), origin.backends)
    return report


def _delegate_row(info: DelegateInfo, registry: Registry) -> DelegateRow:
    module = info.module
    facts = module.meta.get("_delegate_info_meta")
    return DelegateRow(
        method=info.method,
        name=info.name,
        backend=registry.spec(module.backend_id).name,
        producer=" ".join(filter(None, registry.producer(module.backend_id))),
        operators=count_operators(info.nodes),
        inputs=module.inputs,
        outputs=module.outputs,
        bytes=len(module.blob),
        facts={str(k): str(v) for k, v in facts.items()} if isinstance(facts, Mapping) else {},
        seconds=dict(info.seconds),
    )


def host_calls(nodes: Iterable[Node]) -> list[Node]:
    """Calls that the host computes: not delegates, nor what unpacks them or casts at their border."""
    moved: set[Node] = set()
    found: list[Node] = []
    for node in nodes:
        if node.op != "call_function":
            continue
        if node.target is CALL_DELEGATE or "boundary" in node.meta or _unpacks(node, moved):
            moved.add(node)
        else:
            found.append(node)
    return found


def _unpacks(node: Node, moved: set[Node]) -> bool:
    return getattr(node.target, "__name__", "") == "getitem" and node.args[0] in moved


def operator_name(node: Node) -> str:
    """``aten.add.Tensor`` and the like."""
    return (
        str(node.target)
        if isinstance(node.target, torch._ops.OpOverload)
        else getattr(node.target, "__name__", str(node.target))
    )


def count_operators(nodes: Iterable[Node]) -> dict[str, int]:
    """Operator -> number of calls; unpacking results is no operator."""
    names = (operator_name(n) for n in nodes)
    return dict(Counter(name for name in names if name != "getitem"))


NOT_TAGGED = "not tagged by its partitioner"
"""Why a call stayed behind of which a backend was asked, and said nothing."""


def reasons_of(backend: str, refusals: Iterable[Refusal]) -> Reasons:
    """The reasons of one partitioner."""
    return {(backend, r.node.meta.get("debug_handle", 0), operator_name(r.node)): r.reason for r in refusals}


def refusal_rows(method: str, left: Sequence[Node], reasons: Reasons, backends: Sequence[str]) -> list[RefusalRow]:
    """One row an operator, backend and reason. What was taken apart for the host alone counts as what it was."""
    found: dict[tuple[str, str, str], dict[Any, Node]] = {}
    for node in left:
        if operator_name(node) != "getitem":
            for backend in backends:
                op, why = _refused(node, backend, reasons)
                one = node if op == operator_name(node) else node.meta["debug_handle"]
                found.setdefault((op, backend, why), {}).setdefault(one, node)
    return [
        RefusalRow(method, op, backend, why, len(nodes), next((s for n in nodes.values() if (s := source_of(n))), None))
        for (op, backend, why), nodes in found.items()
    ]


def _refused(node: Node, backend: str, reasons: Reasons) -> tuple[str, str]:
    """The operator that ``backend`` refused here, ``node``'s own or one that it is a piece of, and why."""
    around: tuple[str, ...] = node.meta.get("decomposed_from", ())
    for depth, op in enumerate((operator_name(node), *reversed(around))):
        why = reasons.get((backend, node.meta.get("debug_handle", 0), op))
        if why is not None:
            return op, f"{why} (part of {around[0]})" if around[: len(around) - depth] else why
    return around[0] if around else operator_name(node), NOT_TAGGED


def refused_by(node: Node, reasons: Reasons, backends: Sequence[str]) -> list[tuple[str, str, str]]:
    """(Operator, backend, reason) of every backend that was asked about ``node``, a call of the host, and refused."""
    found = ((backend, *_refused(node, backend, reasons)) for backend in backends)
    return [(op, backend, why) for backend, op, why in found]
