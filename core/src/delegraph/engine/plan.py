"""Which nodes go where: the partitioner's tags, checked, become one plan, from which host and delegates are built."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node

from ..discovery.attribution import AtWork
from ..exported_program import constant_placeholders, output_values, written_values
from ..partitioner.contract import Partitioner, PartitionResult
from ..partitioner.validate import check_result
from .partition import ON_HOST, Partition, Plan, Tags, broken
from .snapshot import Snapshot
from .state import give_state, returned_values


class Answer(NamedTuple):
    """What a partitioner said about a program, and the tags that it put on the program's nodes.

    ``before``: the program as the partitioner was given it; None if it was not watched.
    """

    program: ExportedProgram
    result: PartitionResult
    tags: Tags
    before: Snapshot | None


def ask(program: ExportedProgram, partitioner: Partitioner, watched: bool = True) -> Answer:
    """Ask ``partitioner`` about ``program``, and check that it did only what the contract allows.

    It is ``watched``, that is checked for changes to what belongs to others, unless ``program`` was made just to ask.
    """
    before = Snapshot(program) if watched else None
    with AtWork(partitioner, "partition"):
        result = partitioner(program)
    check_result(partitioner, result, program)
    who = f"partitioner {type(partitioner).__name__}"
    if before is not None:
        _check_untouched(who, before)
    return Answer(program, result, _tags(program, result.partition_tags, who), before)


def make_plan(answer: Answer) -> Plan:
    """The partitions of an answer, with the values that cross their borders. ContractViolation if that cannot be."""
    program, result, tags, before = answer
    assert before is not None, "what is lowered is watched"
    partitions = connected_partitions(program, result, tags)
    provider = {n: partitions[t[0]] for n, t in tags.items() if n.op != "placeholder" and t[0] is not None}
    return Plan(program, [p for p in partitions.values() if p.nodes], tags, provider, list(result.refusals), before)


def connected_partitions(program: ExportedProgram, result: PartitionResult, tags: Tags) -> dict[str, Partition]:
    """The partitions of a program by tag, each with its inputs, outputs and state.

    ``tags`` says where each node is computed. A partition without ``nodes`` has only constants.
    """
    partitions = _collect(tags, result)
    position = {n: k for k, n in enumerate(program.graph.nodes)}
    give_state(program, tags, partitions)
    returned = returned_values(program, {n for p in partitions.values() for n in p.state})
    results = _result_positions(program)
    for partition in partitions.values():
        _connect(partition, tags, position, returned)
        # Results of the program have its order, among themselves: the file of a whole program returns them so.
        ordered = iter(sorted((n for n in partition.outputs if n in results), key=results.__getitem__))
        partition.outputs = [next(ordered) if n in results else n for n in partition.outputs]
    return partitions


def _check_untouched(who: str, before: Snapshot) -> None:
    """Raise ContractViolation if a partitioner changed more than tags.

    The graph, its subgraphs and the weights are others'.
    """
    subgraphs, tensors = before.edited_subgraphs(), before.written_tensors()
    if subgraphs:
        raise broken(f"{who} changed the graph of {subgraphs[0]}; it may only set meta['delegation_tag']")
    if tensors:
        raise broken(f"{who} changed the tensor {tensors[0]!r}, which is the caller's")
    if before.is_rewritten():
        raise broken(f"{who} changed the graph; it may only set meta['delegation_tag']")
    if (node := before.put_values_back()) is not None:
        text = f"{who} changed the recorded type of {node.name} (meta['val']); it may only set meta['delegation_tag']"
        raise broken(text, node)


def _tags(program: ExportedProgram, known: Mapping[str, Any], who: str) -> Tags:
    """Node -> its tags. Raises ContractViolation for a tag on a node that cannot be delegated, or an unknown tag."""
    ownable = constant_placeholders(program) | set(written_values(program))
    tags: Tags = {}
    for node in program.graph.nodes:
        listed = _tags_of(node, tags, who)
        if not listed or ON_HOST in node.meta:
            continue
        if node.op == "output":
            raise broken(f"{who}: output node {node.name} should not be tagged")
        if node.op == "placeholder" and node not in ownable:
            what = "placeholder node for non-params, non-buffer, and non-tensor constants"
            raise broken(f"{who}: {what} should not be tagged: {node.name}")
        for tag in listed[1:] if listed[0] is None and node.op == "call_function" else listed:
            if tag not in known:
                text = f"{who}: tag {tag!r} of {node.name} is not in partition_tags {list(known)}"
                raise broken(text, node)
        tags[node] = listed
    return tags


def _tags_of(node: Node, tags: Tags, who: str) -> tuple[str | None, ...]:
    """The tags of one node as a tuple, empty if it has none; ContractViolation for a tag that is no str."""
    given = node.meta.get("delegation_tag")
    listed = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if not all(tag is None or isinstance(tag, str) for tag in listed):
        kind = type(given).__name__
        raise broken(f"{who}: {node.name} has the tag {given!r:.80} ({kind}); a tag is a str", node)
    listed = () if listed == (None,) else listed
    if node.target is not operator.getitem or node.op != "call_function":
        return listed
    # What unpacks a call's results belongs where the call is, since a delegate returns single values.
    producer: tuple[str | None, ...] = tags.get(node.args[0], ())  # type: ignore[arg-type]
    if listed and listed != producer:
        text = f"{who}: {node.name} unpacks {node.args[0]} and is to have its tag {producer}, not {listed}"
        raise broken(text, node)
    return producer


def _collect(tags: Tags, result: PartitionResult) -> dict[str, Partition]:
    """The partitions by tag, with their calls and the constants that they own."""
    partitions = {tag: Partition(tag, spec, []) for tag, spec in result.partition_tags.items()}
    for node, listed in tags.items():  # in graph order
        for tag in listed if node.op != "placeholder" else ():
            if tag is not None:
                partitions[tag].nodes.append(node)
    for tag, partition in partitions.items():
        # its calls, and their operands: constants and values with a boundary type are among these
        near = {n for call in partition.nodes for n in (call, *call.all_input_nodes)}
        partition.constants = [n for n in near if n.op == "placeholder" and n in tags]
        partition.boundary = {n: result.boundary_types[n.name] for n in near if n.name in result.boundary_types}
        for node in (n for n in partition.constants if n.meta.get("no_copy")):
            for user in node.users:
                if tags.get(user) != (tag,):
                    text = f"constant {node.name} is tagged with {tag} but has user {user.name} which has tag"
                    raise broken(f"{text} {tags.get(user)}", user)
    return partitions


def _connect(partition: Partition, tags: Tags, position: Mapping[Node, int], returned: Collection[Node]) -> None:
    """Find the values that cross the partition's border: its inputs and outputs."""
    inside = {*partition.nodes, *partition.constants}
    incoming = (i for n in partition.nodes for i in n.all_input_nodes if i not in inside and i.op != "get_attr")
    partition.constants.sort(key=position.__getitem__)
    # ExecuTorch's order: device halves that count positions were written for it. Graph order would also make blobs of
    # equal layers differ, where the host happens to compute what they share in another order.
    partition.inputs = list(dict.fromkeys(incoming))
    partition.outputs = [n for n in partition.nodes if tags[n][0] == partition.tag and _leaves(n, tags, returned)]


def _result_positions(program: ExportedProgram) -> dict[Node, int]:
    """Calls that the program returns -> position among the outputs, the first one if it is returned several times."""
    positions: dict[Node, int] = {}
    for k, (spec, value) in enumerate(zip(program.graph_signature.output_specs, output_values(program), strict=True)):
        if spec.kind is OutputKind.USER_OUTPUT and isinstance(value, Node):
            positions.setdefault(value, k)
    return positions


def _leaves(node: Node, tags: Tags, returned: Collection[Node]) -> bool:
    """Whether ``node`` is an output of its partition: something elsewhere needs it and has no copy of its own.

    A call that returns several values is never an output; the nodes that unpack it are.
    """
    several = isinstance(node.meta.get("val"), (list, tuple))
    users = [u for u in node.users if u.op != "output"]
    elsewhere = any(not tags.get(u) or not {*tags[u]} <= {*tags[node]} for u in users)
    return not several and (elsewhere or node in returned)
