"""The records of a lowering: a partition, the plan of a graph, the work on a partition.

A partition is a set of calls that one backend compiles. It becomes a delegate. All
other calls stay on the host, which is PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from delegraph_programs import is_operator, source_of
from delegraph_programs.higher_order_subgraphs import Subgraph
from torch.export import ExportedProgram
from torch.fx import Node

from ..backend import PreprocessResult
from ..delegates.find_delegates import DelegateInfo
from ..delegates.lowered_module import LoweredBackendModule
from ..errors import ContractViolation
from ..partitioner.interface import DelegationSpec, Refusal
from .compiler_interface import Refused
from .undo_decompositions import Composites

ON_HOST = "checked_on_host"
"""Metadata key of a check that the host computes even if a partitioner tags it."""
Tags = dict[Node, tuple[str | None, ...]]
"""Node -> the tags of the partitions that compute its value, and None for the host."""


@dataclass
class Partition:
    """The calls and values of one delegate.

    Lists are in graph order, except ``inputs`` and ``outputs``. ``spec``: its backend,
    and the settings for it. ``nodes``: its calls. ``constants``: the placeholders of
    parameters, buffers and constants that it owns. ``state``: placeholder of a buffer
    that it owns and writes -> the buffer's last value. ``inputs``: nodes with the
    values that it gets at run time, in the order in which its calls first use them.
    ``outputs``: its calls with values that the host or other partitions use.
    ``boundary``: call or operand of the partition -> the dtype in which its value
    crosses the border, if that is not the recorded one. ``boundary_types``: name ->
    this dtype, for all values of the program.
    """

    tag: str
    spec: DelegationSpec
    nodes: list[Node]
    constants: list[Node] = field(default_factory=list)
    state: dict[Node, Node] = field(default_factory=dict)
    inputs: list[Node] = field(default_factory=list)
    outputs: list[Node] = field(default_factory=list)
    boundary: dict[Node, torch.dtype] = field(default_factory=dict)
    boundary_types: Mapping[str, torch.dtype] = field(default_factory=dict)


Unit = Partition | Node
"""A step of the host's program: a call of a delegate, or a node of its own."""


@dataclass
class Plan:
    """The partitions of one program, and the calls that stay on the host.

    ``tags``: node -> the partitions that compute the node; None is the host. A constant
    may have several tags, and None as well. ``provider``: delegated node -> the
    partition that returns its value. ``units``: partitions and nodes of the host, in
    the order in which they run. ``inner``: subgraphs of calls that the host makes, with
    their plans. ``composites``: calls that were decomposed for this plan.

    By default, the host keeps a buffer that the program writes: the host passes the
    buffer to delegates and stores its new values. If the partitioner tagged the
    placeholder of the buffer, the one delegate that reads and writes the buffer owns
    it. Then the buffer is in the ``state`` of that partition, and the host has neither
    the placeholder nor the write.
    """

    program: ExportedProgram
    partitions: list[Partition]
    tags: Tags
    provider: dict[Node, Partition]
    refusals: list[Refusal]
    units: list[Unit] = field(default_factory=list)
    inner: list[tuple[Subgraph, Plan]] = field(default_factory=list)
    composites: Composites = field(default_factory=Composites)

    def with_inner(self) -> Iterator[Plan]:
        """Yield the plan itself, and the plans of subgraphs at any depth."""
        yield self
        for _, plan in self.inner:
            yield from plan.with_inner()


@dataclass
class Work:
    """The work on one partition, from the step ``extract`` to the step ``insert``.

    ``module``: the module that the host calls. ``seconds``: step -> duration. After
    compiling, either ``result`` is the result of the backend, or ``not_compiled`` has
    the reason why there is none. ``origin``: as in ``Compiled``. ``equal_to``: the work
    on an equal partition, which has the same result. ``name``: the attribute of the
    method's program that has the module; "" before ``insert``.
    """

    method: str
    plan: Plan
    partition: Partition
    module: LoweredBackendModule
    seconds: dict[str, float]
    result: PreprocessResult | None = None
    not_compiled: Refused | None = None
    origin: str = ""
    equal_to: Work | None = None
    name: str = ""

    def to_delegate(self, name: str) -> DelegateInfo:
        """Set ``name``, and return the delegate that the partition became.

        If ``equal_to`` is set, its ``name`` must be set before: the origin shows it.
        """
        self.name = name
        operators = tuple(filter(is_operator, self.partition.nodes))
        origin = self.origin
        if self.equal_to is not None:
            origin = f"equal to {self.equal_to.name}"
        return DelegateInfo(
            self.method, name, self.module, operators, self.seconds, origin
        )


def contract_broken(
    text: str, node: Node | None = None, hint: str | None = None
) -> ContractViolation:
    """Return the error for a partitioner that broke its contract.

    ``node``: the node that the error is about; None if there is none.
    """
    return ContractViolation(
        "contract-violation", text, node, source_of(node) if node else None, hint
    )
