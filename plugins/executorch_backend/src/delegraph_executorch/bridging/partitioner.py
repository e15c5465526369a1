"""A partitioner of ExecuTorch as one of delegraph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, ClassVar

from delegraph.backend import CompileSpec
from delegraph.errors import ContractViolation
from delegraph.exported_program import written_values
from delegraph.partitioner import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
    Refusal,
    tag_constant_data,
    tag_mutated_buffer,
)
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node

from .edge import ORIGIN, to_edge_dialect


class BridgedPartitioner(Partitioner):
    """Tags what a partitioner of ExecuTorch tags in a copy of the program in edge dialect, as the same partitions.

    A call whose pieces would go to different partitions, or only in part, is refused. A subclass that ``bridge`` made
    has ``backend_id`` and ``make``, which is called with the options and returns the other partitioner.
    """

    backend_id: ClassVar[str]
    make: ClassVar[Callable[..., Any]]

    def __init__(self, **options: Any) -> None:
        super().__init__(options)
        self.theirs = type(self).make(**options)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        calls = [n for n in exported_program.graph.nodes if n.op == "call_function"]
        split: set[Node] = set()
        # What is refused although a piece of it was tagged is hidden from the partitioner, which is then asked again:
        # its partitions would lie before and behind that call otherwise, and leave no order to run them in.
        while True:
            edge = to_edge_dialect(exported_program, split)
            result = self.theirs.partition(edge)
            pieces = _tags_of_pieces(result.tagged_exported_program)
            newly = {n for n in calls if n not in split and len(pieces.get(n.name, ())) > 1}
            if not newly:
                break
            split |= newly
        tags = {n: next(iter(pieces.get(_call_of(n).name, {None}))) for n in calls}
        used = {tag for tag in tags.values() if tag is not None}
        for node in calls:
            if tags[node] is not None:
                node.meta["delegation_tag"] = tags[node]
        tag_constant_data(exported_program)
        if self._keeps_buffers(result.tagged_exported_program, exported_program):
            tag_mutated_buffer(exported_program)
        specs = {tag: self._delegation(tag, spec) for tag, spec in result.partition_tags.items() if tag in used}
        refusals = [self._refusal(n, n in split) for n in calls if tags[n] is None]
        return PartitionResult(exported_program, specs, refusals=refusals)

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[OpOverload], Callable[[Node], bool] | None]:
        """Those of the other partitioner; operators that write or alias cannot stay whole in a functional program."""
        operators, wanted = self.theirs.ops_to_not_decompose(ep)
        return [op for op in operators if isinstance(op, OpOverload) and not _aliases(op)], wanted

    def transform_for_pre_decomposition(self, exported_program: ExportedProgram) -> ExportedProgram:
        changed: ExportedProgram = self.theirs.transform_for_pre_decomposition(exported_program)
        return changed

    def _delegation(self, tag: str, spec: Any) -> DelegationSpec:
        if spec.backend_id != self.backend_id:
            text = f"{type(self.theirs).__name__} gave the partition {tag} to {spec.backend_id}, not {self.backend_id}"
            raise ContractViolation("contract-violation", text, hint="bridge it together with that backend")
        return DelegationSpec(spec.backend_id, [CompileSpec(s.key, bytes(s.value)) for s in spec.compile_specs])

    def _refusal(self, node: Node, is_split: bool) -> Refusal:
        name = type(self.theirs).__name__
        return Refusal(node, f"{name} takes only a part of it" if is_split else f"{name} does not take it")

    def _keeps_buffers(self, edge: ExportedProgram, own: ExportedProgram) -> bool:
        names = {n.name for n in written_values(own)}
        return any("delegation_tag" in n.meta for n in edge.graph.nodes if n.op == "placeholder" and n.name in names)


def _tags_of_pieces(edge: ExportedProgram) -> dict[str, set[Any]]:
    """Name of each call -> the tags of its pieces, None for a piece that has none."""
    found: dict[str, set[Any]] = {}
    for node in edge.graph.nodes:
        if node.op == "call_function" and ORIGIN in node.meta and node.target is not operator.getitem:
            found.setdefault(node.meta[ORIGIN], set()).add(node.meta.get("delegation_tag"))
    return found


def _call_of(node: Node) -> Node:
    """The call that ``node`` takes one of several results of, or itself."""
    return _call_of(node.args[0]) if node.target is operator.getitem else node  # type: ignore[arg-type]


def _aliases(op: OpOverload) -> bool:
    schema = op._schema
    return schema.is_mutable or any(r.alias_info is not None for r in schema.returns)
