"""The step ``extract``: each partition becomes an ExportedProgram.

The program shares tensors with the whole program. Its *border* is its inputs and
outputs. A value may cross the border in another dtype than the recorded one: its
*boundary type*, which the partitioner chooses.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from delegraph_programs import (
    TRACING,
    argument_of,
    build_program,
    constant_placeholders,
    copy_node,
    flat_call,
    placeholder_of,
    placeholders,
    written_targets,
)
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec
from torch.fx import Graph, Node

from ..delegates.lowered_module import Argument, LoweredBackendModule
from ..partitioner.interface import DelegationSpec, PartitionResult
from .ask_partitioner import build_partitions
from .partition_records import Partition, Plan, Work

_KIND_OF_NEW_VALUE = {
    InputKind.BUFFER: OutputKind.BUFFER_MUTATION,
    InputKind.PARAMETER: OutputKind.PARAMETER_MUTATION,
}


def begin_work(method: str, plan: Plan, partition: Partition) -> Work:
    """Return the ``Work`` on a partition, with its program and a module without a blob.

    ``method``: the name of the method that ``plan`` is for.
    """
    start = time.perf_counter()
    program = extract(method, plan.program, partition)
    spec = partition.spec
    inputs = [_argument(node, partition) for node in partition.inputs]
    outputs = [_argument(node, partition) for node in partition.outputs]
    module = LoweredBackendModule(
        spec.backend_id, program, spec.compile_specs, inputs, outputs
    )
    module.boundary_types = dict(partition.boundary_types)
    return Work(
        method, plan, partition, module, {"extract": time.perf_counter() - start}
    )


def _argument(node: Node, partition: Partition) -> Argument:
    """Return ``node`` as an input or output of the delegate, in its boundary type."""
    return Argument.of(node.name, node.meta.get("val"), partition.boundary.get(node))


def extract(
    method: str, whole: ExportedProgram, partition: Partition
) -> ExportedProgram:
    """Return a partition of the program ``whole`` as a program.

    The new program has placeholders of the partition's constants, then of its inputs.
    It returns a flat tuple: first the new values of buffers that the partition owns and
    writes, as mutations, then the outputs. A value with a boundary type is cast inside.
    The program has copies of tensors that it writes, and shares all others with
    ``whole``. For the backend, ``meta`` of the graph module has the method, and the tag
    under the key "partition".
    """
    build = _Build(whole, partition)
    call = flat_call(len(partition.inputs), len(partition.outputs))
    # Not validated, because the nodes are copies of valid nodes, in the same order.
    # Validation takes half a millisecond for each hundred nodes, and makes closures
    # that only the garbage collector frees.
    program = build_program(
        whole.graph_module,
        build.graph,
        build.inputs,
        build.outputs,
        whole,
        call,
        check=False,
    )
    program.graph_module.meta.update(method=method, partition=partition.tag)
    for target in written_targets(program):
        tensors = (
            program.state_dict if target in program.state_dict else program.constants
        )
        shared = tensors[target]
        copy = shared.detach().clone()
        # torch expects a parameter where the signature has one
        is_parameter = isinstance(shared, torch.nn.Parameter)
        tensors[target] = (
            torch.nn.Parameter(copy, shared.requires_grad) if is_parameter else copy
        )
    return program


class ProgramsOf:
    """A function that returns a fresh program of a partition at each call.

    The first call returns the program that the partition's module has already. A
    backend may change its program, so each later call makes a new program, and stores
    it in the module as well.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._is_first = True

    def __call__(self) -> ExportedProgram:
        work = self._work
        if not self._is_first:
            program = extract(work.method, work.plan.program, work.partition)
            work.module.original_module = program
        self._is_first = False
        return work.module.original_module


class _Build:
    """Builds the graph of one partition and its signature.

    ``graph``: the partition's graph. ``inputs`` and ``outputs``: its signature.
    ``env``: node of the whole program -> the node of ``graph`` that has its value.
    """

    def __init__(self, whole: ExportedProgram, partition: Partition) -> None:
        """Build the graph of ``partition``, a part of the program ``whole``.

        The order is: placeholders of constants, placeholders of inputs, calls, output.
        """
        self.graph = Graph(owning_module=whole.graph_module)
        self.partition = partition
        self.env: dict[Node, Node] = {}
        self.inputs: list[InputSpec] = []
        # placeholder of the whole program -> its spec; only constants need one
        specs = dict(placeholders(whole)) if partition.constants else {}
        for node in partition.constants:
            spec = specs[node]
            new = self._placeholder(node)
            self.inputs.append(
                InputSpec(spec.kind, argument_of(new), spec.target, spec.persistent)
            )
        self.inputs += [self._input(n) for n in partition.inputs]
        for node in partition.nodes:
            # the nodes that fetch the call's subgraphs belong to no partition
            for operand in node.all_input_nodes:
                if operand.op == "get_attr" and operand not in self.env:
                    self._copy(operand)
            self._copy(node)
        self.outputs = self._return(
            [(last, specs[n]) for n, last in partition.state.items()]
        )

    def _copy(self, node: Node) -> None:
        """Add a copy of ``node``, without its tag, to the graph and to ``env``.

        Inputs and constants are added by ``_placeholder`` instead.
        """
        self.env[node] = new = copy_node(self.graph, node, self.env.__getitem__)
        new.meta.pop("delegation_tag", None)

    def _placeholder(self, node: Node) -> Node:
        """Add a placeholder for ``node`` to the graph and to ``env``, and return it."""
        new = placeholder_of(self.graph, node)
        new.meta.pop("delegation_tag", None)
        new.meta.pop("debug_handle", None)
        self.env[node] = new
        return new

    def _input(self, node: Node) -> InputSpec:
        """Add a placeholder for the run-time input ``node``, and return its spec.

        If the input has a boundary type, the placeholder gets this dtype. A cast inside
        of the partition then restores the recorded dtype.
        """
        placeholder = self._placeholder(node)
        if node in self.partition.boundary:
            recorded = placeholder.meta["val"].dtype
            placeholder.meta["val"] = as_dtype(
                placeholder.meta["val"], self.partition.boundary[node]
            )
            self.env[node] = cast(self.graph, placeholder, recorded)
            # the cast gets the debug handle of the first call that uses it
            first_use = next(
                n for n in self.partition.nodes if node in n.all_input_nodes
            )
            self.env[node].meta["debug_handle"] = first_use.meta["debug_handle"]
        return InputSpec(InputKind.USER_INPUT, argument_of(placeholder), None)

    def _return(self, state: list[tuple[Node, InputSpec]]) -> list[OutputSpec]:
        """Add the graph's output, and return its specs.

        The new values of buffers come first, then the results in their boundary types.
        ``state``: (last value, spec) of each buffer that the partition writes.
        """
        values: list[Node] = []
        specs: list[OutputSpec] = []
        for last, spec in state:
            values.append(self.env[last])
            specs.append(
                OutputSpec(
                    _KIND_OF_NEW_VALUE[spec.kind], argument_of(values[-1]), spec.target
                )
            )
        for node in self.partition.outputs:
            value = self.env[node]
            dtype = self.partition.boundary.get(node)
            values.append(value if dtype is None else cast(self.graph, value, dtype))
            specs.append(
                OutputSpec(OutputKind.USER_OUTPUT, argument_of(values[-1]), None)
            )
        self.graph.output(tuple(values))
        return specs


def cast(graph: Graph, node: Node, dtype: torch.dtype) -> Node:
    """Add a call to ``graph`` that casts ``node`` to ``dtype``, and return the call.

    The call is named ``NODE_as_DTYPE``. It has the metadata of the node, such as its
    source, but no tag, because no partitioner tagged it.
    """
    name = f"{node.name}_as_{str(dtype).removeprefix('torch.')}"
    new = graph.create_node(
        "call_function",
        torch.ops.aten._to_copy.default,
        (node,),
        {"dtype": dtype},
        name,
    )
    new.meta = {k: v for k, v in node.meta.items() if k != "delegation_tag"}
    new.meta["val"] = as_dtype(node.meta["val"], dtype)
    return new


def as_dtype(val: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ``val``, a recorded value (a fake tensor), in another dtype."""
    # Lowerings of one program share the mode of its fake tensors, which only one thread
    # at a time may use.
    with TRACING:
        return val.to(dtype)


def extract_partition(
    exported_program: ExportedProgram,
    nodes: Sequence[Node],
    boundary_types: Mapping[str, torch.dtype] = MappingProxyType({}),
) -> ExportedProgram:
    """Return the program that ``preprocess`` would get for a partition of ``nodes``.

    A support check may compile this program in ``Support.partition_why_not(nodes)``.
    ``exported_program``: the program that ``Support.begin`` got. ``nodes``: calls of
    that program. The calls keep their names and debug handles. Buffers that
    ``exported_program`` writes become inputs. ``boundary_types``: as in
    ``PartitionResult``. The result shares tensors and subgraphs with
    ``exported_program``, so do not change these. Takes time linear in the size of
    ``exported_program``.
    """
    constant = constant_placeholders(exported_program)
    used = {n for call in nodes for n in call.all_input_nodes if n in constant}
    # neither partition nor backend nor method has a name here
    tag = ""
    tags: dict[Node, tuple[str | None, ...]] = {
        n: (tag,) for n in exported_program.graph.nodes if n in used
    }
    tags |= dict.fromkeys(nodes, (tag,))
    result = PartitionResult(
        exported_program, {tag: DelegationSpec("")}, boundary_types
    )
    partition = build_partitions(exported_program, result, tags)[tag]
    return extract("", exported_program, partition)
