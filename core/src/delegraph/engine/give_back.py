"""Partitions that a compiler refused are taken out of their plan, as if the support check had refused their operators.

A backend says what it takes before anything is compiled. Its compiler may still find that one partition does not fit
the device. The partition's operators then stay on the host, and the next backends are asked about them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch.fx import Node

from ..exported.call_names import count_operators, is_operator
from ..partitioner.contract import Reason, Refusal
from ..report.rows import GivenBack
from ..source import Source, source_of
from .order import order
from .partition import Plan, Work


def give_back(plan: Plan, refused: Sequence[Work]) -> None:
    """Take the partitions of ``refused``, which all belong to ``plan``, out of it.

    Changes the tags, refusals and order of ``plan``, and its program: calls that were decomposed for the compiler that
    refused them are restored.
    """
    if not refused:
        return
    gone = {work.partition.tag for work in refused}
    plan.partitions = [p for p in plan.partitions if p.tag not in gone]
    plan.tags = {node: left for node, tags in plan.tags.items() if (left := _tags_left(node, tags, gone))}
    # the first tag is that of the partition that returns the value, or None for the host
    plan.provider = {node: p for node, p in plan.provider.items() if plan.tags.get(node, (None,))[0] == p.tag}
    for work in refused:
        reason = _reason(work)
        plan.refusals += [Refusal(n, reason) for n in work.partition.nodes if is_operator(n)]
    # Calls that were decomposed for this compiler alone are restored, for the next backend and for eager PyTorch.
    named = {n.name for p in plan.partitions for n in p.boundary}
    plan.refusals = plan.composites.restore(plan.tags, named, plan.refusals)
    for partition in plan.partitions:
        partition.inputs = [plan.composites.now(n) for n in partition.inputs]
    plan.units = order(plan)


def _tags_left(node: Node, tags: tuple[str | None, ...], gone: Collection[str]) -> tuple[str | None, ...]:
    """The ``tags`` of ``node`` without those of partitions in ``gone``, which the compiler refused.

    Only a call on constants has several tags: each partition computes it by itself. If it loses one of them, the host
    computes it as well, which None in the first place says: the partitions that are left are compiled already, so none
    of them can get another output to provide the value. A placeholder is not computed, and never gets None.
    """
    remaining = tuple(tag for tag in tags if tag is not None and tag not in gone)
    # shorter also if None was among the tags: then the host goes on computing the call
    for_host_too = node.op != "placeholder" and len(remaining) < len(tags)
    return (None, *remaining) if remaining and for_host_too else remaining


def _reason(work: Work) -> Reason:
    """The reason for the operators of a refused partition; its ``cause`` makes equal ones one row of the report."""
    assert work.not_compiled is not None
    reason, hint, _ = work.not_compiled
    return Reason(f"its compiler refused the partition: {reason}", hint=hint, cause=f"not compiled: {reason}")


def given_back_row(backend: str, work: Work) -> GivenBack:
    """The report's row about a refused partition; ``backend`` is the backend's name in the report."""
    assert work.not_compiled is not None
    reason, _, source = work.not_compiled
    nodes, lines = work.partition.nodes, map(source_of, work.partition.nodes)
    shown = source if isinstance(source, Source) else next(filter(None, lines), None)
    return GivenBack(work.method, backend, work.partition.tag, count_operators(nodes), reason, shown)
