"""The program of one partition before there is a plan, for support checks that ask their compiler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from delegraph_programs import constant_placeholders
from torch.export import ExportedProgram
from torch.fx import Node

from ..partitioner.contract import DelegationSpec, PartitionResult
from .extract import extract
from .partition import Plan
from .plan import connected_partitions
from .snapshot import Snapshot


def extract_partition(
    exported_program: ExportedProgram,
    nodes: Sequence[Node],
    boundary_types: Mapping[str, torch.dtype] = MappingProxyType({}),
) -> ExportedProgram:
    """The program that ``preprocess`` would get for a partition of ``nodes``, calls of ``exported_program``.

    For a support check that asks its compiler in ``Support.partition_why_not(nodes)``; ``exported_program`` is the one
    that ``begin`` got. The calls keep the names and debug handles of ``nodes``. Buffers that the program writes become
    inputs. ``boundary_types``: those of the ``PartitionResult``. The result shares tensors and subgraphs with the
    program, so only read them. Takes time linear in the program.
    """
    constant = constant_placeholders(exported_program)
    used = {n for call in nodes for n in call.all_input_nodes if n in constant}
    # a plan with one partition, whose tag is the empty text
    tags: dict[Node, tuple[str | None, ...]] = {n: ("",) for n in exported_program.graph.nodes if n in used}
    tags |= dict.fromkeys(nodes, ("",))
    result = PartitionResult(exported_program, {"": DelegationSpec("")}, boundary_types)
    partition = connected_partitions(exported_program, result, tags)[""]
    return extract("", Plan(exported_program, [partition], tags, {}, [], Snapshot(exported_program)), partition)
