"""Removes partitions that a compiler refused from the plans of their methods.

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
    """Take refused partitions out of ``plan``, and put their compiled parts in.

    ``refused``: partitions of ``plan``, each with its compiled and its refused parts.
    Changes all fields of ``plan`` except ``inner``. If no part of a decomposed call is
    delegated any more, the call is restored in the program of ``plan``.
    """
    if not refused:
        return
    gone = {narrowed.work.partition.tag for narrowed in refused}
    kept: list[Partition] = []
    for narrowed in refused:
        kept += [work.partition for work in narrowed.kept]
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
    for narrowed in refused:
        plan.refusals += _refusals(narrowed, plan.tags)
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

    A call on constants has several tags if several partitions have a copy of it. If one
    of them is gone, its operators are on the host and may use the call. So the host
    must compute the call: the other partitions are compiled already, and do not return
    it. ``(a, b)`` without ``a`` becomes ``(None, b)``, where None is the host. If no
    partition remains, the result is empty: then the call is an ordinary one of the host.
    """
    remaining = tuple(tag for tag in tags if tag is not None and tag not in gone)
    if not remaining or node.op == "placeholder":  # a placeholder is not computed
        return remaining
    host_computes = None in tags or any(tag in gone for tag in tags)
    return (None, *remaining) if host_computes else remaining


def _add_tags(plan: Plan, parts: Sequence[Partition]) -> None:
    """Add the tags of ``parts`` to ``plan``.

    No part returns the result of a call on constants, because each part that uses the
    result has a copy of the call. If the host or a partition without a copy uses the
    result, the host must compute the call too. Then the call's first tag is None.
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
            and plan.tags[node][0] is not None  # the host does not compute it yet
            and _is_needed_elsewhere(node, plan.tags)
        ):
            plan.tags[node] = (None, *plan.tags[node])


def _is_needed_elsewhere(node: Node, tags: Tags) -> bool:
    """Return whether the host, or a partition without a copy of ``node``, uses it."""
    computing = set(tags[node])
    for user in node.users:
        # a user without tags is on the host, whose tag is None
        if not computing.issuperset(tags.get(user, (None,))):
            return True
    return False


def _refusals(narrowed: Narrowed, tags: Tags) -> list[Refusal]:
    """Return the refusals of a partition's operators that the host computes now.

    ``narrowed``: the partition with its refused parts. ``tags``: those of the plan,
    without this partition.
    """
    # Calls on constants may be in no refused part. They get the reason of the last
    # part, because reports need one; without parts, that of the whole partition.
    default = narrowed.work.not_compiled
    reasons: dict[Node, Refused | None] = {}
    for part in narrowed.refused:
        default = part.not_compiled
        reasons.update(dict.fromkeys(part.partition.nodes, part.not_compiled))
    refusals = []
    for node in narrowed.work.partition.nodes:
        is_on_host = tags.get(node, (None,))[0] is None
        if is_operator(node) and is_on_host:
            refusals.append(Refusal(node, _reason(reasons.get(node, default))))
    return refusals


def _reason(why: Refused | None) -> Reason:
    """Return the reason that the report has for operators of a refused partition.

    ``why``: the compiler's refusal. The report has one row for all operators with the
    same ``cause``.
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
    # the source of the node that the compiler named, or else of the first node
    source = work.not_compiled.error.source
    shown = source if isinstance(source, Source) else first_source(nodes)
    reason = work.not_compiled.reason
    return GivenBack(
        work.method, backend, work.partition.tag, count_operators(nodes), reason, shown
    )
