"""Calls a partitioner, checks its result, and makes a ``Plan`` of it.

A partitioner writes a tag, the name of a partition, into ``node.meta`` of each node
that a backend takes. The plan has one ``Partition`` for each tag; nodes without a tag
stay on the host. A call on constants may have several tags: each of these partitions
computes it, and for the tag None the host.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from delegraph_programs import (
    constant_placeholders,
    is_operator,
    written_values,
)
from delegraph_programs.exported_program import SHARED_STATE, outputs
from delegraph_programs.program_snapshot import Snapshot
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node

from ..discovery.plugin_call import PluginCall
from ..errors import PluginFailed
from ..partitioner.check_result import check_partition_result
from ..partitioner.interface import Partitioner, PartitionResult, Refusal
from .buffer_owners import give_state, returned_values
from .compiler_interface import Session
from .failures_to_refusals import guarded, may_be_refusal, reason_of
from .partition_records import ON_HOST, Partition, Plan, Tags, contract_broken


class Answer(NamedTuple):
    """A partitioner's result for a program, and the tags that it put on the nodes."""

    program: ExportedProgram
    result: PartitionResult
    tags: Tags


def check_settings(
    partitioner: Partitioner, programs: Mapping[str, ExportedProgram]
) -> None:
    """Let ``partitioner`` check its settings; it may raise OptionError.

    ``programs``: method -> program, for all methods that the partitioner will get.
    """
    with PluginCall(partitioner, "check_settings"):
        partitioner.check_settings(programs)


def ask(
    program: ExportedProgram,
    partitioner: Partitioner,
    session: Session | None = None,
    may_fail: bool = False,
) -> Answer:
    """Ask ``partitioner`` about ``program``, and check that it only sets tags.

    ``session`` calls the partitioner, or returns an earlier answer. Without a session,
    the partitioner is called here. ``may_fail``: an exception of the partitioner leads
    to refusals (``_result_after_failure``), instead of PluginFailed. Raises
    ContractViolation for a result of a wrong type, for a tag that is not allowed, and
    for a change of anything but tags.
    """
    before = Snapshot(program)
    try:
        if session is None:
            result = _call(program, partitioner)
        else:
            result = session.partition(partitioner, program)
    except PluginFailed as failure:
        if not may_fail or not may_be_refusal(failure):
            raise
        result = _result_after_failure(program, partitioner, failure)
    check_partition_result(partitioner, result, program)
    subject = f"partitioner {type(partitioner).__name__}"
    _check_untouched(subject, before)
    tags = _tags(program, result.partition_tags, subject)
    return Answer(program, result, tags)


def _call(program: ExportedProgram, partitioner: Partitioner) -> PartitionResult:
    """Return the partitioner's result, unchecked.

    An exception of the partitioner becomes PluginFailed, which names the plugin.
    """
    with PluginCall(partitioner, "partition"):
        return partitioner(program)


def _result_after_failure(
    program: ExportedProgram, partitioner: Partitioner, failure: PluginFailed
) -> PartitionResult:
    """Return a result for a partitioner that raised ``failure``.

    If the partitioner has a support check, the partitioner is called again. Each
    exception of the check then refuses the call that was asked about. Without a support
    check, or if the second attempt fails, too, all calls are refused.
    """
    _forget_tags(program)
    guarded_partitioner = guarded(partitioner)
    if guarded_partitioner is not None:
        try:
            return _call(program, guarded_partitioner)
        except PluginFailed as second_failure:
            if not may_be_refusal(second_failure):
                raise
            _forget_tags(program)
    reason = reason_of(failure)
    calls = [node for node in program.graph.nodes if is_operator(node)]
    # final: the calls are not decomposed to ask about their parts
    return PartitionResult(
        program, {}, refusals=[Refusal(node, reason, final=True) for node in calls]
    )


def _forget_tags(program: ExportedProgram) -> None:
    """Remove the tags that a failed partitioner wrote."""
    for node in program.graph.nodes:
        node.meta.pop("delegation_tag", None)


def make_plan(answer: Answer) -> Plan:
    """Return the plan for an answer.

    Raises ContractViolation for tags from which no partitions can be built.
    """
    program, result, tags = answer
    partitions = build_partitions(program, result, tags)
    # Several partitions may compute the same call on constants. Only the partition of
    # the call's first tag returns the value. None as the first tag is the host.
    provider = {
        node: partitions[node_tags[0]]
        for node, node_tags in tags.items()
        if node.op != "placeholder" and node_tags[0] is not None
    }
    return Plan(
        program,
        [p for p in partitions.values() if p.nodes],
        tags,
        provider,
        list(result.refusals),
    )


def build_partitions(
    program: ExportedProgram, result: PartitionResult, tags: Tags
) -> dict[str, Partition]:
    """Return tag -> partition, with all fields of each partition.

    A partition without ``nodes`` has only constants. Raises ContractViolation for a
    constant or a written buffer that a partition cannot own.
    """
    partitions = _collect_members(tags, result)
    position = {n: k for k, n in enumerate(program.graph.nodes)}
    # first, since a buffer that a partition keeps has no output for its new value
    give_state(program, tags, partitions)
    kept_buffers: set[Node] = set()
    for partition in partitions.values():
        kept_buffers.update(partition.state)
    returned = returned_values(program, kept_buffers)
    result_position = _result_positions(program)
    for partition in partitions.values():
        _set_inputs_and_outputs(partition, tags, position, returned, result_position)
    return partitions


def _check_untouched(subject: str, before: Snapshot) -> None:
    """Raise ContractViolation if a partitioner changed more than tags since ``before``.

    ``subject`` names the partitioner. If it replaced ``meta["val"]`` of nodes, the old
    values are put back.
    """
    subgraphs = before.edited_subgraphs()
    tensors = before.written_tensors()
    retyped = None
    if subgraphs:
        changed = f"the graph of {subgraphs[0]}"
    elif tensors:
        changed = f"the tensor {tensors[0]!r}, which belongs to the caller"
    elif before.is_rewritten():
        changed = "the graph"
    else:
        # puts all replaced values back; returns the first node with another type
        retyped = before.put_values_back()
        if retyped is None:
            return
        changed = f"the recorded type of {retyped.name} (meta['val'])"
    text = f"{subject} changed {changed}; it may only set meta['delegation_tag']"
    raise contract_broken(text, retyped)


def _tags(program: ExportedProgram, valid: Mapping[str, Any], subject: str) -> Tags:
    """Return node -> its tags, for nodes that have some.

    Two kinds of nodes stay on the host, so their tags are left out: checks that the
    host computes (``ON_HOST``), and buffers that several methods share. ``valid``: its
    keys are the tags that the partitioner returned. ``subject`` names the partitioner
    in errors. Raises ContractViolation for an unknown tag, or a tag on a node that
    cannot be delegated.
    """
    # the placeholders that may be tagged
    ownable = constant_placeholders(program) | set(written_values(program))
    tags: Tags = {}
    for node in program.graph.nodes:
        node_tags = _tags_of(node, tags, subject)
        if not node_tags or ON_HOST in node.meta or SHARED_STATE in node.meta:
            continue
        if node.op == "output":
            raise contract_broken(
                f"{subject}: output node {node.name} should not be tagged"
            )
        if node.op == "placeholder" and node not in ownable:
            kind = (
                "placeholder node for non-params, non-buffer, and non-tensor constants"
            )
            raise contract_broken(
                f"{subject}: {kind} should not be tagged: {node.name}"
            )
        # None as the first tag means that the host computes the call as well
        is_on_host = node_tags[0] is None and node.op == "call_function"
        backend_tags = node_tags[1:] if is_on_host else node_tags
        for tag in backend_tags:
            if tag not in valid:
                text = (
                    f"{subject}: tag {tag!r} of {node.name} is not in partition_tags"
                    f" {list(valid)}"
                )
                raise contract_broken(text, node)
        tags[node] = node_tags
    return tags


def _tags_of(node: Node, tags: Tags, subject: str) -> tuple[str | None, ...]:
    """Return the tags of one node as a tuple, empty if it has none.

    A call that unpacks results has the tags of the call that it unpacks, since a
    delegate cannot return a tuple as one value. ``tags``: those of earlier nodes. Raises
    ContractViolation for a tag that is not a str, or that differs from the tag of the
    unpacked call.
    """
    tag_or_tags = node.meta.get("delegation_tag")
    node_tags = (
        tuple(tag_or_tags) if isinstance(tag_or_tags, (tuple, list)) else (tag_or_tags,)
    )
    if not all(tag is None or isinstance(tag, str) for tag in node_tags):
        kind = type(tag_or_tags).__name__
        raise contract_broken(
            f"{subject}: {node.name} has the tag {tag_or_tags!r:.80} ({kind}); a tag is"
            " a str",
            node,
        )
    # (None,) means that there is no tag; in (None, tag), None is the host
    if node_tags == (None,):
        node_tags = ()
    if node.target is not operator.getitem or node.op != "call_function":
        return node_tags
    producer: tuple[str | None, ...] = tags.get(node.args[0], ())  # type: ignore[arg-type]
    if node_tags and node_tags != producer:
        text = (
            f"{subject}: {node.name} takes an item of {node.args[0]}, so it must have"
            f" its tags {producer}, not {node_tags}"
        )
        raise contract_broken(text, node)
    return producer


def _collect_members(tags: Tags, result: PartitionResult) -> dict[str, Partition]:
    """Return tag -> partition, with calls, constants and boundary types.

    Inputs, outputs and state are still empty. Raises ContractViolation if a constant
    without copies ("no_copy") has a user outside of its partition.
    """
    dtypes = result.boundary_types
    partitions = {
        tag: Partition(tag, spec, [], boundary_types=dtypes)
        for tag, spec in result.partition_tags.items()
    }
    for node, node_tags in tags.items():  # in graph order
        if node.op != "placeholder":
            for tag in node_tags:
                if tag is not None:  # not the host
                    partitions[tag].nodes.append(node)
    for tag, partition in partitions.items():
        used = set(partition.nodes)
        for call in partition.nodes:
            used.update(call.all_input_nodes)
        partition.constants = [n for n in used if n.op == "placeholder" and n in tags]
        partition.boundary = {
            n: result.boundary_types[n.name]
            for n in used
            if n.name in result.boundary_types
        }
        # the partitioner marks a constant of which there must be only one copy
        unique = [n for n in partition.constants if n.meta.get("no_copy")]
        for node in unique:
            for user in node.users:
                if tags.get(user) != (tag,):
                    text = (
                        f"constant {node.name} is tagged with {tag} but has user"
                        f" {user.name} which has tag {tags.get(user)}"
                    )
                    raise contract_broken(text, user)
    return partitions


def _set_inputs_and_outputs(
    partition: Partition,
    tags: Tags,
    position: Mapping[Node, int],
    returned: Collection[Node],
    result_position: Mapping[Node, int],
) -> None:
    """Fill ``inputs`` and ``outputs`` of a partition, and sort its constants.

    ``position``: node -> its position in the graph. ``returned``: nodes that the host
    returns or stores. ``result_position``: node -> its position among the results of
    the program.
    """
    partition.constants.sort(key=position.__getitem__)
    inside = {*partition.nodes, *partition.constants}
    used = (operand for node in partition.nodes for operand in node.all_input_nodes)
    # Inputs are in the order of first use, as in ExecuTorch: runtimes on devices rely
    # on these positions. In graph order, blobs of equal layers could differ, because
    # the host may compute their inputs in different orders.
    partition.inputs = list(
        dict.fromkeys(n for n in used if n not in inside and n.op != "get_attr")
    )
    outputs = [
        n
        for n in partition.nodes
        if tags[n][0] == partition.tag and _is_output(n, tags, returned)
    ]
    # Files of whole programs need results in the program's order. So outputs that are
    # results are sorted, and other outputs keep their positions. For example, (c, x, a)
    # becomes (a, x, c) if x is not a result.
    results = [n for n in outputs if n in result_position]
    in_order = iter(sorted(results, key=result_position.__getitem__))
    partition.outputs = [next(in_order) if n in result_position else n for n in outputs]


def _result_positions(program: ExportedProgram) -> dict[Node, int]:
    """Return node -> its first position among the results of the program."""
    positions: dict[Node, int] = {}
    for k, (spec, value) in enumerate(outputs(program)):
        if spec.kind is OutputKind.USER_OUTPUT and isinstance(value, Node):
            positions.setdefault(value, k)
    return positions


def _is_output(node: Node, tags: Tags, returned: Collection[Node]) -> bool:
    """Return whether ``node`` is an output of its partition.

    It is an output if the host returns or stores its value, or if it has a user on the
    host or in a partition without a copy of ``node``. A call with several results is
    never an output: the nodes that unpack these results are outputs.
    """
    has_several = isinstance(node.meta.get("val"), (list, tuple))
    users = [u for u in node.users if u.op != "output"]
    # The host has the tag None, and its calls may lack tags. A user is elsewhere if it
    # has a tag that the node lacks.
    own_tags = {*tags[node]}
    used_elsewhere = any({*tags.get(u, (None,))} - own_tags for u in users)
    return not has_several and (used_elsewhere or node in returned)
