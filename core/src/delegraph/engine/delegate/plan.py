"""Which nodes go where: the partitioner's tags, checked, as one plan from which parent and children are built."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from ...discovery.attribution import AtWork
from ...exported_program import constant_placeholders, written_values
from ...partitioner.contract import Partitioner, PartitionResult
from ...partitioner.validate import check_result
from .partition import Partition, Plan, Tags, broken
from .snapshot import Snapshot
from .state import give_state, returned_values


def make_plan(program: ExportedProgram, partitioner: Partitioner) -> Plan:
    """Ask ``partitioner`` about ``program`` and check that it did what the contract allows."""
    before = Snapshot(program)
    with AtWork(partitioner, "partition"):
        result = partitioner(program)
    check_result(partitioner, result, program)
    _check_untouched(partitioner, before)
    tags = _tags(program, result.partition_tags, partitioner)
    partitions = _collect(program, tags, result)
    provider = {n: partitions[t[0]] for n, t in tags.items() if n.op != "placeholder" and t[0] is not None}
    position = {n: k for k, n in enumerate(program.graph.nodes)}
    give_state(program, tags, partitions)
    returned = returned_values(program, {n for p in partitions.values() for n in p.state})
    for partition in partitions.values():
        _connect(partition, tags, position, returned)
    return Plan(program, [p for p in partitions.values() if p.nodes], tags, provider, list(result.refusals))


def _check_untouched(who: Partitioner, before: Snapshot) -> None:
    """A partitioner may only set tags: the graph, its bodies and the weights are the lowering's and the caller's."""
    name, bodies, tensors = type(who).__name__, before.edited_bodies(), before.written_tensors()
    if bodies:
        raise broken(f"partitioner {name} changed the graph of {bodies[0]}; it may only set meta['delegation_tag']")
    if tensors:
        raise broken(f"partitioner {name} changed the tensor {tensors[0]!r}, which is the caller's")
    if before.is_rewritten():
        raise broken(f"partitioner {name} changed the graph; it may only set meta['delegation_tag']")


def _tags(program: ExportedProgram, known: Mapping[str, Any], who: Partitioner) -> Tags:
    """Node -> its tags; checks that only what may be delegated is tagged."""
    constant = constant_placeholders(program) | set(written_values(program))
    tags: Tags = {}
    for node in program.graph.nodes:
        listed = _listed(node, tags, type(who).__name__)
        if listed:
            _check_tag(node, listed, known, constant, type(who).__name__)
            tags[node] = listed
    return tags


def _listed(node: Node, tags: Tags, who: str) -> tuple[str | None, ...]:
    given = node.meta.get("delegation_tag")
    listed = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if not all(tag is None or isinstance(tag, str) for tag in listed):
        kind = type(given).__name__
        raise broken(f"partitioner {who}: {node.name} has the tag {given!r:.80} ({kind}); a tag is a str", node)
    listed = () if listed == (None,) else listed
    if node.target is not operator.getitem or node.op != "call_function":
        return listed
    producer: tuple[str | None, ...] = tags.get(node.args[0], ())  # type: ignore[arg-type]
    if listed and listed != producer:
        raise broken(
            f"partitioner {who}: {node.name} unpacks {node.args[0]} and is to have its tag {producer}, not {listed}",
            node,
        )
    return producer


def _check_tag(
    node: Node, listed: tuple[str | None, ...], known: Mapping[str, Any], constant: set[Node], who: str
) -> None:
    if node.op == "output":
        raise broken(f"partitioner {who}: output node {node.name} should not be tagged")
    if node.op == "placeholder" and node not in constant:
        what = "placeholder node for non-params, non-buffer, and non-tensor constants"
        raise broken(f"partitioner {who}: {what} should not be tagged: {node.name}")
    for tag in listed[1:] if listed[0] is None and node.op == "call_function" else listed:
        if tag not in known:
            raise broken(f"partitioner {who}: tag {tag!r} of {node.name} is not in partition_tags {list(known)}", node)


def _collect(program: ExportedProgram, tags: Tags, result: PartitionResult) -> dict[str, Partition]:
    """Partitions with their calls and the constants that they own."""
    partitions = {tag: Partition(tag, spec, []) for tag, spec in result.partition_tags.items()}
    owned = {n for n in tags if n.op == "placeholder"}
    for node in program.graph.nodes:
        for tag in tags.get(node, ()) if node.op != "placeholder" else ():
            if tag is not None:
                partitions[tag].nodes.append(node)
    for partition in partitions.values():
        used = {i for n in partition.nodes for i in n.all_input_nodes if i in owned}
        _check_no_copy(used, tags, partition.tag)
        partition.constants = list(used)
        partition.boundary = _boundary(result, partition)
    return partitions


def _check_no_copy(used: set[Node], tags: Tags, tag: str) -> None:
    for node in (n for n in used if n.meta.get("no_copy")):
        for user in node.users:
            if tags.get(user) != (tag,):
                text = (
                    f"constant {node.name} is tagged with {tag} but has user {user.name} which has tag {tags.get(user)}"
                )
                raise broken(text, user)


def _boundary(result: PartitionResult, partition: Partition) -> dict[Node, torch.dtype]:
    near = {n for call in partition.nodes for n in (call, *call.all_input_nodes)} if result.boundary_types else ()
    return {n: result.boundary_types[n.name] for n in near if n.name in result.boundary_types}


def _connect(
    partition: Partition,
    tags: Tags,
    position: Mapping[Node, int],
    returned: Collection[Node],
) -> None:
    """Find what crosses the partition's border."""
    inside = {*partition.nodes, *partition.constants}
    incoming = {i for n in partition.nodes for i in n.all_input_nodes if i not in inside and i.op != "get_attr"}
    partition.constants.sort(key=position.__getitem__)
    partition.inputs = sorted(incoming, key=position.__getitem__)
    partition.outputs = [n for n in partition.nodes if tags[n][0] == partition.tag and _leaves(n, tags, returned)]


def _leaves(node: Node, tags: Tags, returned: Collection[Node]) -> bool:
    """Whether somebody who does not compute ``node`` for itself needs it; what returns several is unpacked first."""
    several = isinstance(node.meta.get("val"), (list, tuple))
    users = [u for u in node.users if u.op != "output"]
    elsewhere = any(not tags.get(u) or not {*tags[u]} <= {*tags[node]} for u in users)
    return not several and (elsewhere or node in returned)
