"""A partition, the plan of a graph's partitions, and the tags that a partitioner put on its nodes."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from ...errors import ContractViolation
from ...partitioner.contract import DelegationSpec, Refusal
from ...program.lowered_module import LoweredBackendModule
from ...source import source_of

Tags = dict[Node, tuple[str | None, ...]]
"""Node -> where it is computed: partitions, by tag, and None for the host."""


@dataclass
class Partition:
    """What one delegate computes. All lists are in graph order.

    ``nodes``: its calls; ``constants``: placeholders of parameters, buffers and constants that it owns; ``state``:
    those of them that it writes, with their last values; ``inputs``: values that it gets at run time; ``outputs``:
    values that others use. ``boundary``: dtypes in which values cross.
    """

    tag: str
    spec: DelegationSpec
    nodes: list[Node]
    constants: list[Node] = field(default_factory=list)
    state: dict[Node, Node] = field(default_factory=dict)
    inputs: list[Node] = field(default_factory=list)
    outputs: list[Node] = field(default_factory=list)
    boundary: dict[Node, torch.dtype] = field(default_factory=dict)


@dataclass
class Plan:
    """The partitions of one program, who provides each delegated value, and what stayed behind.

    ``tags``: where a node is computed; None is the host, for a constant that partitions have copies of.

    A value that the program writes is owned by the parent, which passes it to delegates as an input and stores what
    they return, or, if the partitioner tagged its placeholder, by the one delegate that reads and writes it: then it is
    in that partition's ``state``, and the parent has neither the placeholder nor the write.
    """

    program: ExportedProgram
    partitions: list[Partition]
    tags: Tags
    provider: dict[Node, Partition]
    refusals: list[Refusal]


@dataclass
class Work:
    """One partition on its way: its program for the backend, the module that will stand for it, seconds per phase."""

    method: str
    plan: Plan
    partition: Partition
    program: ExportedProgram
    module: LoweredBackendModule
    seconds: dict[str, float]


def broken(text: str, node: Node | None = None, hint: str | None = None) -> ContractViolation:
    """What a partitioner did against its contract."""
    return ContractViolation("contract-violation", text, node, source_of(node) if node else None, hint)
