"""Takes partitions that a compiler refused out of their plans.

A backend states which operators it takes before anything is compiled. Its compiler may
still fail on a partition, or find that the partition does not fit the device. If parts
of the partition compile, these parts replace it. The other operators stay on the host,
and the next backends are asked about them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from delegraph_programs import Source, is_operator
from delegraph_programs.call_names import count_operators
from delegraph_programs.source_line import first_source
from torch.fx import Node

from ..partitioner.interface import Reason, Refusal
from ..report.rows import GivenBack
from .compiler_interface import Refused
from .find_failing_part import Narrowed
from .order_host_program import order
from .partition_records import Partition, Plan, Tags, Work


def give_back(plan: Plan, refused: Sequence[Narrowed]) -> None:
    """Take the partitions of ``refused`` out of ``plan``, and put their kept parts in.

    All of ``refused`` belong to ``plan``. Changes all fields of ``plan`` except
    ``inner``. If no part of a decomposed call is delegated any more, the call is
    restored in the program of ``plan``.
    """
    if not refused:
        return
    gone = {one.work.partition.tag for one in refused}
    kept = [work.partition for one in refused for work in one.kept]
    plan.partitions = [p for p in plan.partitions if p.tag not in gone] + kept
    tags_left = {node: _tags_left(node, tags, gone) for node, tags in plan.tags.items()}
    plan.tags = {node: tags for node, tags in tags_left.items() if tags}
    _add_tags(plan, kept)
    # the first tag of a call names the partition that returns its value, or is None for
    # the host
    by_tag = {partition.tag: partition for partition in plan.partitions}
    plan.provider = {
        node: by_tag[tags[0]]
        for node, tags in plan.tags.items()
        if node.op != "placeholder" and tags[0] is not None
    }
    for one in refused:
        plan.refusals += _refusals(one, plan.tags)
    # the next backend and the host get restored calls instead of their parts
    with_boundary_type: set[str] = set()
    for partition in plan.partitions:
        with_boundary_type.update(node.name for node in partition.boundary)
    plan.refusals = plan.composites.restore(
        plan.tags, with_boundary_type, plan.refusals
    )
    for partition in plan.partitions:
        partition.inputs = [plan.composites.present_node(n) for n in partition.inputs]
    plan.units = order(plan)


def _tags_left(
    node: Node, tags: tuple[str | None, ...], gone: Collection[str]
) -> tuple[str | None, ...]:
    """Return the ``tags`` of ``node`` without the partitions in ``gone``.

    Only a constant has several tags. If a call on constants loses some of its
    partitions, the host must compute the call: ``(a, b)`` without a is ``(None, b)``.
    Partition b is compiled already, so it cannot get another output for the value. If
    no partition remains, the result is empty. A placeholder is not computed, and never
    gets None.
    """
    remaining = tuple(tag for tag in tags if tag is not None and tag not in gone)
    # shorter if a partition is gone, or if the host computes the call already (None)
    for_host_too = node.op != "placeholder" and len(remaining) < len(tags)
    return (None, *remaining) if remaining and for_host_too else remaining


def _add_tags(plan: Plan, parts: Sequence[Partition]) -> None:
    """Add the tags of ``parts`` to ``plan``.

    Some calls on constants get the host's tag, None, as well. No part returns the
    result of such a call, because each part that uses it has a copy of the call. If the
    host uses the result, or a partition without a copy, the host must compute it.
    """
    for part in parts:
        for node in (*part.constants, *part.nodes):
            plan.tags[node] = (*plan.tags.get(node, ()), part.tag)
    computed: set[Node] = set()
    returned: set[Node] = set()
    for part in parts:
        computed.update(part.nodes)
        returned.update(part.outputs)
    not_returned = computed - returned
    # users come first, because the host needs the operands of calls that it computes
    for node in reversed(plan.program.graph.nodes):
        if (
            node in not_returned
            and plan.tags[node][0] is not None  # the host's tag, None, is the first
            and _is_needed_elsewhere(node, plan.tags)
        ):
            plan.tags[node] = (None, *plan.tags[node])


def _is_needed_elsewhere(node: Node, tags: Tags) -> bool:
    """Return whether the host, or a partition without a copy of it, uses ``node``."""
    # the tags of each user; a user without tags is on the host
    users = (tags.get(user, (None,)) for user in node.users)
    return any(None in of_user or not {*of_user} <= {*tags[node]} for of_user in users)


def _refusals(refused: Narrowed, tags: Tags) -> list[Refusal]:
    """Return the refusals of the partition's operators that the host computes now.

    ``tags``: those of the plan, without the refused partition.
    """
    reasons: dict[Node, Refused | None] = {}
    for work in refused.refused:
        reasons.update(dict.fromkeys(work.partition.nodes, work.not_compiled))
    # for a call on constants, which is in no refused part by itself
    default = (
        refused.refused[-1].not_compiled
        if refused.refused
        else refused.work.not_compiled
    )
    on_host = [
        n
        for n in refused.work.partition.nodes
        if is_operator(n) and tags.get(n, (None,))[0] is None
    ]
    return [Refusal(node, _reason(reasons.get(node, default))) for node in on_host]


def _reason(why: Refused | None) -> Reason:
    """Return the reason for the operators of a partition that was refused for ``why``.

    Operators with the same ``cause`` are one row of the report.
    """
    assert why is not None
    verb = "failed on" if why.has_failed else "refused"
    return Reason(
        f"its compiler {verb} the partition: {why.reason}",
        hint=why.hint,
        cause=f"not compiled: {why.reason}",
    )


def given_back_row(backend: str, work: Work) -> GivenBack:
    """Return the report's row about a partition that ``backend`` refused."""
    assert work.not_compiled is not None
    nodes = work.partition.nodes
    source = work.not_compiled.error.source
    shown = source if isinstance(source, Source) else first_source(nodes)
    reason = work.not_compiled.reason
    return GivenBack(
        work.method, backend, work.partition.tag, count_operators(nodes), reason, shown
    )
