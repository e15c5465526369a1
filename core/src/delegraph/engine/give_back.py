"""Partitions that a compiler refused leave their plan, as if the support check had refused their operators.

What a backend takes, it says before anything is compiled, and a compiler may still find that one partition does not fit
its device. Its operators are then the host's, where the partitioners of the next backends meet them together with what
else is there.
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
    """Take the partitions of ``refused``, all of this plan, out of it."""
    if not refused:
        return
    gone = {work.partition.tag for work in refused}
    plan.partitions = [p for p in plan.partitions if p.tag not in gone]
    plan.tags = {node: left for node, tags in plan.tags.items() if (left := _tags_left(node, tags, gone))}
    plan.provider = {node: p for node, p in plan.provider.items() if plan.tags.get(node, (None,))[0] == p.tag}
    for work in refused:
        reason = _reason(work)
        plan.refusals += [Refusal(n, reason) for n in work.partition.nodes if is_operator(n)]
    # What was decomposed for this compiler alone is whole again, for the next backend and for eager PyTorch.
    named = {n.name for p in plan.partitions for n in p.boundary}
    plan.refusals = plan.composites.restore(plan.tags, named, plan.refusals)
    for partition in plan.partitions:
        partition.inputs = [plan.composites.now(n) for n in partition.inputs]
    plan.units = order(plan)


def _tags_left(node: Node, tags: tuple[str | None, ...], gone: Collection[str]) -> tuple[str | None, ...]:
    """Where a node is computed without the partitions that are ``gone``.

    A constant that others have copies of is the host's now, too: it must not become an output of one of them, since
    they are compiled.
    """
    left = tuple(tag for tag in tags if tag is not None and tag not in gone)
    copied = node.op != "placeholder" and len(left) < len(tags)
    return (None, *left) if left and copied else left


def _reason(work: Work) -> Reason:
    """For the report: refusals of one reason are one cause there, whatever the partition."""
    assert work.not_compiled is not None
    reason, hint, _ = work.not_compiled
    return Reason(f"its compiler refused the partition: {reason}", hint=hint, cause=f"not compiled: {reason}")


def given_back_row(backend: str, work: Work) -> GivenBack:
    """What a report says of a refused partition; ``backend``: its name there."""
    assert work.not_compiled is not None
    reason, _, source = work.not_compiled
    nodes, lines = work.partition.nodes, map(source_of, work.partition.nodes)
    shown = source if isinstance(source, Source) else next(filter(None, lines), None)
    return GivenBack(work.method, backend, work.partition.tag, count_operators(nodes), reason, shown)
