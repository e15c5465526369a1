"""Building the report of a lowering."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch.fx import Node

from ..discovery.registry import Registry
from ..program.delegates import DelegateInfo
from .collect import count_operators, host_calls, refusal_rows
from .model import Report
from .rows import DelegateRow, ReportOrigin


def build_report(
    origin: ReportOrigin,
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
