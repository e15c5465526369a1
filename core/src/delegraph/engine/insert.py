"""The step ``insert``: builds the host's program.

It calls a module in place of each partition. If a value crosses the border of a
partition in another dtype (its *boundary type*), the host's program casts it.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

import torch
from delegraph_programs import (
    build_program,
    copy_node,
    name_outputs,
    output_node,
    placeholders,
    root_call,
)
from delegraph_programs.exported_program import CALL_DELEGATE
from delegraph_programs.exported_program import outputs as program_outputs
from delegraph_programs.higher_order_subgraphs import put_back
from torch.export import ExportedProgram
from torch.export.graph_signature import InputSpec
from torch.fx import Graph, Node

from ..delegates.lowered_module import LoweredBackendModule
from .buffer_owners import stored_by_delegates
from .extract import as_dtype, cast
from .partition_records import Partition, Plan, Work


def insert_delegates(
    plan: Plan, work: Sequence[Work], handles: Iterator[int], names: Iterator[str]
) -> ExportedProgram:
    """Return the program of ``plan`` in which calls of modules replace the partitions.

    Partitions of subgraphs are replaced as well. ``work``: the work on all partitions,
    with their modules. ``handles`` yields debug handles for the calls. ``names`` yields
    names for the modules.
    """
    # names of attributes that the program fetches already: subgraphs, and delegates of
    # earlier backends
    used_names = {n.target for n in plan.program.graph.nodes if n.op == "get_attr"}
    free_names = (name for name in names if name not in used_names)
    # a list: this graph takes its names before the subgraphs take theirs
    module_names = list(islice(free_names, len(plan.partitions)))
    # (subgraph, its new program); subgraphs come before this graph, because it no
    # longer needs constants that delegates in subgraphs own
    lowered = [
        (subgraph, insert_delegates(inner, work, handles, names))
        for subgraph, inner in plan.inner
    ]
    # ``put_back`` returns the constants that the new subgraphs no longer need
    dropped = put_back(plan.program, lowered)
    modules = {w.partition.tag: w.module for w in work if w.plan is plan}
    host = _HostProgram(plan, dropped, iter(module_names))
    for unit in plan.units:
        if isinstance(unit, Partition):
            host.call(unit, modules[unit.tag], next(handles))
        elif not _is_for_delegates(plan, unit):
            host.copy(unit)
    return host.build()


def _is_for_delegates(plan: Plan, node: Node) -> bool:
    """Return whether ``node`` fetches a subgraph that only delegated calls use.

    The host's program does not need such a node: delegates have copies of subgraphs.
    """
    if node.op != "get_attr" or not node.users:
        return False
    # the host computes a call without tags, or with None among its tags
    return all(None not in plan.tags.get(user, (None,)) for user in node.users)


class _HostProgram:
    """Builds the host's new graph, its signature, and the table of its modules.

    The caller calls ``copy`` and ``call`` in the order in which the host runs nodes and
    partitions, and then ``build``.
    """

    def __init__(
        self, plan: Plan, dropped: Collection[Node], names: Iterator[str]
    ) -> None:
        """Begin the host's graph with copies of the placeholders that the host needs.

        ``dropped``: constants that the subgraphs no longer need, because delegates
        inside own them. ``names``: yields names for the modules.
        """
        self.plan = plan
        self.names = names
        self.graph = Graph(owning_module=plan.program.graph_module)
        self.env: dict[Node, Node] = {}  # node of the plan's program -> its copy
        self.modules: dict[str, LoweredBackendModule] = {}  # by name
        self.state: set[Node] = set()  # the buffers that delegates keep
        for partition in plan.partitions:
            self.state.update(partition.state)
        self.inputs: list[InputSpec] = []  # specs of the placeholders that stay
        for node, spec in placeholders(plan.program):
            if self._stays(node, dropped):
                self.inputs.append(spec)
                self.copy(node)

    def _stays(self, node: Node, dropped: Collection[Node]) -> bool:
        """Return whether the host needs the placeholder ``node``.

        The host does not need a constant that only delegates use, nor a buffer that a
        delegate keeps. An unused placeholder stays unless it is in ``dropped``, because
        the model itself may not use it.
        """
        if node in self.state:
            return False
        if not node.users:
            return node not in dropped
        tags = self.plan.tags
        owners = set(tags.get(node, ()))  # partitions that own the constant
        for user in node.users:
            # a user without tags is on the host, whose tag is None
            if not owners.issuperset(tags.get(user, (None,))):
                return True
        return False

    def copy(self, node: Node) -> None:
        """Add a copy of ``node``, a placeholder or a node that the host computes."""
        new = copy_node(self.graph, node, lambda n: self.env[n])
        new.meta.pop("delegation_tag", None)
        self.env[node] = new

    def call(
        self, partition: Partition, module: LoweredBackendModule, handle: int
    ) -> None:
        """Add a call of ``module``, which replaces ``partition``.

        ``handle``: the debug handle of the call. An input with a boundary type is cast
        to that type before the call. An output is cast back to its recorded dtype.
        """
        name = next(self.names)
        self.modules[name] = module
        fetching = self.graph.create_node("get_attr", name, name=name)
        fetching.meta = {"val": None, "debug_handle": handle}
        boundary = partition.boundary
        args = []
        for node in partition.inputs:
            arg = self.env[node]
            if node in boundary:
                arg = self._cast(arg, boundary[node])
            args.append(arg)
        call = self.graph.call_function(CALL_DELEGATE, (fetching, *args))
        vals = []  # recorded values of the delegate's results, in boundary types
        for k, node in enumerate(partition.outputs):
            new = self.graph.call_function(operator.getitem, (call, k))
            new.meta = dict(node.meta)
            new.meta.pop("delegation_tag", None)
            self.env[node] = new
            if node in boundary:
                recorded = node.meta["val"]
                new.meta["val"] = as_dtype(recorded, boundary[node])
                self.env[node] = self._cast(new, recorded.dtype)
            vals.append(new.meta["val"])
        call.meta = {"val": tuple(vals), "debug_handle": handle}

    def _cast(self, node: Node, dtype: torch.dtype) -> Node:
        """Add a cast at the border of a delegate, and return the cast.

        The mark "boundary" keeps reports from counting the cast as an operator.
        """
        new = cast(self.graph, node, dtype)
        new.meta["boundary"] = True
        return new

    def build(self) -> ExportedProgram:
        """Return the program, without outputs for buffers that delegates keep."""
        program = self.plan.program
        left_out = stored_by_delegates(program, self.state)  # positions of outputs
        specs = []
        values = []
        for k, (spec, value) in enumerate(program_outputs(program)):
            if k not in left_out:
                specs.append(spec)
                values.append(self.env[value] if isinstance(value, Node) else value)
        self.graph.output(tuple(values)).meta = dict(output_node(program.graph).meta)
        outputs = name_outputs(specs, values)
        fetched = [str(n.target) for n in self.env if n.op == "get_attr"]
        root = {name: getattr(program.graph_module, name) for name in fetched}
        root.update(self.modules)
        return build_program(
            root, self.graph, self.inputs, outputs, program, root_call(program)
        )
