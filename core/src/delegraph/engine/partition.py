"""The data of a lowering: a partition, the plan of all partitions of a graph, and the work on one partition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from ..backend import PreprocessResult
from ..delegates.delegates import DelegateInfo
from ..delegates.lowered_module import LoweredBackendModule
from ..errors import ContractViolation
from ..exported.call_names import is_operator
from ..exported.subgraphs import Subgraph
from ..partitioner.contract import DelegationSpec, Refusal
from ..source import source_of
from .composites import Composites
from .snapshot import Snapshot

ON_HOST = "checked_on_host"
"""Metadata of a call that only checks something: its tags do not count."""
Tags = dict[Node, tuple[str | None, ...]]
"""Node -> where it is computed: tags of partitions, and None for the host."""


@dataclass
class Partition:
    """What one delegate computes. Lists are in graph order, but for ``inputs``.

    ``nodes`` are its calls. ``constants`` are the placeholders of parameters, buffers and constants that it owns, and
    ``state`` maps those of them that it writes to their last values. ``inputs`` are values that it gets at run time, in
    the order in which its calls first use them. ``outputs`` are values that others use. ``boundary`` has the dtypes in
    which values cross its border, where these are not the recorded ones.
    """

    tag: str
    spec: DelegationSpec
    nodes: list[Node]
    constants: list[Node] = field(default_factory=list)
    state: dict[Node, Node] = field(default_factory=dict)
    inputs: list[Node] = field(default_factory=list)
    outputs: list[Node] = field(default_factory=list)
    boundary: dict[Node, torch.dtype] = field(default_factory=dict)


Unit = Partition | Node
"""What the host runs in one go: a call of a delegate, or a call of an operator."""


@dataclass
class Plan:
    """The partitions of one program, which of them provides each delegated value, and what stayed behind.

    ``tags``: where each node is computed; None stands for the host, beside tags for a constant that partitions have
    copies of. ``snapshot``: the program as the partitioner was given it. ``units``: host calls and partitions in the
    order in which they run. ``inner``: plans of the subgraphs of calls that the host makes.

    A buffer that the program writes stays with the host, which passes it to delegates as an input and stores what they
    return, unless the partitioner tagged its placeholder. Then the one delegate that reads and writes it owns it: it is
    in that partition's ``state``, and the host has neither the placeholder nor the write.
    """

    program: ExportedProgram
    partitions: list[Partition]
    tags: Tags
    provider: dict[Node, Partition]
    refusals: list[Refusal]
    snapshot: Snapshot
    units: list[Unit] = field(default_factory=list)
    inner: list[tuple[Subgraph, Plan]] = field(default_factory=list)
    composites: Composites = field(default_factory=Composites)

    def all(self) -> Iterator[Plan]:
        """The plan itself and those of subgraphs, at any depth."""
        yield self
        for _, plan in self.inner:
            yield from plan.all()


class NotCompiled(NamedTuple):
    """Why a compiler refused a partition: its reason, its hint and the user's line, as far as they are known."""

    reason: str
    hint: str
    source: object


@dataclass
class Work:
    """One partition on its way through the steps.

    Its program for the backend, its module for the host, seconds by step. ``result`` is what the backend returned for
    the program, once it has. ``not_compiled`` is there instead if the backend refused the program. ``compiled`` says
    whence the result is, where the user asked for a cache; it may be that of ``equal_to``.
    """

    method: str
    plan: Plan
    partition: Partition
    program: ExportedProgram
    module: LoweredBackendModule
    seconds: dict[str, float]
    result: PreprocessResult | None = None
    not_compiled: NotCompiled | None = None
    compiled: str = ""
    equal_to: Work | None = None
    name: str = ""

    def info(self, name: str) -> DelegateInfo:
        """The delegate that the partition has become.

        ``name`` is the attribute under which the method's program has its module.
        """
        self.name, operators = name, tuple(filter(is_operator, self.partition.nodes))
        compiled = self.compiled if self.equal_to is None else f"equal to {self.equal_to.name}"
        return DelegateInfo(self.method, name, self.module, operators, self.seconds, compiled)


def broken(text: str, node: Node | None = None, hint: str | None = None) -> ContractViolation:
    """The error for a partitioner that broke its contract."""
    return ContractViolation("contract-violation", text, node, source_of(node) if node else None, hint)
