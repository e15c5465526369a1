"""The step ``extract``: each partition becomes an ExportedProgram of its own, with its tensors by reference."""

from __future__ import annotations

import time

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec
from torch.fx import Graph, Node

from ..delegates.lowered_module import Argument, LoweredBackendModule
from ..exported.tracing import TRACING
from ..exported_program import (
    argument_of,
    build_program,
    copy_node,
    flat_call,
    placeholder_of,
    placeholders,
    written_targets,
)
from .partition import Partition, Plan, Work

_WRITES = {InputKind.BUFFER: OutputKind.BUFFER_MUTATION, InputKind.PARAMETER: OutputKind.PARAMETER_MUTATION}


def begin_work(method: str, plan: Plan, partition: Partition) -> Work:
    """The partition as a program, and the module that will stand for it, which has no blob yet."""
    start = time.perf_counter()
    program, border = extract(method, plan, partition), partition.boundary
    inputs, outputs = (
        tuple(Argument.of(n.name, n.meta.get("val"), border.get(n)) for n in nodes)
        for nodes in (partition.inputs, partition.outputs)
    )
    module = LoweredBackendModule(partition.spec.backend_id, program, partition.spec.compile_specs, inputs, outputs)
    return Work(method, plan, partition, program, module, {"extract": time.perf_counter() - start})


def extract(method: str, plan: Plan, partition: Partition) -> ExportedProgram:
    """The partition as a program. Its placeholders are its constants, then its inputs; it returns a flat tuple.

    A value with a boundary type arrives (or leaves) in that dtype and is cast inside. New values of buffers that the
    partition owns and writes are returned first, as mutations; the tensors of these buffers are copied for it. ``meta``
    of the graph module has the ``method`` and the tag, for the backend.
    """
    build = _Build(plan, partition)
    call = flat_call(len(partition.inputs), len(partition.outputs))
    # Not validated: its nodes are copies of valid ones, in their order. torch takes half a millisecond for each hundred
    # of them, and makes closures that only the garbage collector frees.
    root, given = plan.program.graph_module, plan.program
    program = build_program(root, build.graph, build.inputs, build.outputs, given, call, check=False)
    program.graph_module.meta.update(method=method, partition=partition.tag)
    for target in written_targets(program):
        tensors = program.state_dict if target in program.state_dict else program.constants
        given, own = tensors[target], tensors[target].detach().clone()
        # torch wants a parameter where the signature says so
        is_parameter = isinstance(given, torch.nn.Parameter)
        tensors[target] = torch.nn.Parameter(own, given.requires_grad) if is_parameter else own
    return program


class _Build:
    """Builds the graph of one partition and its signature, in one pass.

    ``env``: node of the plan's program -> its copy.
    """

    def __init__(self, plan: Plan, partition: Partition) -> None:
        self.graph, self.partition = Graph(owning_module=plan.program.graph_module), partition
        self.env: dict[Node, Node] = {}
        specs = dict(placeholders(plan.program)) if partition.constants else {}
        constants = [(self._placeholder(n), specs[n]) for n in partition.constants]
        self.inputs = [InputSpec(s.kind, argument_of(n), s.target, s.persistent) for n, s in constants]
        self.inputs += [self._input(n) for n in partition.inputs]
        for node in partition.nodes:
            for owner in (i for i in node.all_input_nodes if i.op == "get_attr" and i not in self.env):
                self.env[owner] = copy_node(self.graph, owner, self.env.__getitem__)
            self.env[node] = new = copy_node(self.graph, node, self.env.__getitem__)
            new.meta.pop("delegation_tag", None)
        self.outputs = self._return([(last, specs[n]) for n, last in partition.state.items()])

    def _placeholder(self, node: Node) -> Node:
        """A placeholder that stands for ``node``."""
        new = placeholder_of(self.graph, node)
        new.meta.pop("delegation_tag", None)
        new.meta.pop("debug_handle", None)
        self.env[node] = new
        return new

    def _input(self, node: Node) -> InputSpec:
        """A placeholder for an input, and its spec.

        Inside of the partition, the value has the dtype that the program recorded.
        """
        arrives = self._placeholder(node)
        if node in self.partition.boundary:
            inside = arrives.meta["val"].dtype
            arrives.meta["val"] = as_dtype(arrives.meta["val"], self.partition.boundary[node])
            self.env[node] = cast(self.graph, arrives, inside)
            first_use = next(n for n in self.partition.nodes if node in n.all_input_nodes)
            self.env[node].meta["debug_handle"] = first_use.meta["debug_handle"]
        return InputSpec(InputKind.USER_INPUT, argument_of(arrives), None)

    def _return(self, state: list[tuple[Node, InputSpec]]) -> list[OutputSpec]:
        """The graph's output, and its specs.

        New values of ``state``, then the results, cast to their boundary types.
        """
        stored = [(self.env[last], spec) for last, spec in state]
        boundary = self.partition.boundary
        values = [
            cast(self.graph, self.env[n], boundary[n]) if n in boundary else self.env[n] for n in self.partition.outputs
        ]
        self.graph.output((*(v for v, _ in stored), *values))
        return [
            *(OutputSpec(_WRITES[spec.kind], argument_of(v), spec.target) for v, spec in stored),
            *(OutputSpec(OutputKind.USER_OUTPUT, argument_of(v), None) for v in values),
        ]


def cast(graph: Graph, node: Node, dtype: torch.dtype) -> Node:
    """A cast of ``node`` in core ATen, named after it and the dtype, with the node's source and debug handle."""
    name = f"{node.name}_as_{str(dtype).removeprefix('torch.')}"
    new = graph.create_node("call_function", torch.ops.aten._to_copy.default, (node,), {"dtype": dtype}, name)
    new.meta = {k: v for k, v in node.meta.items() if k != "delegation_tag"}
    new.meta["val"] = as_dtype(node.meta["val"], dtype)
    return new


def as_dtype(val: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The recorded value ``val`` (a fake tensor) in another dtype."""
    # Lowerings of one program share the mode of its fake tensors, which computes for one thread at a time.
    with TRACING:
        return val.to(dtype)
