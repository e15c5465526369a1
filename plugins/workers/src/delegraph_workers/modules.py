"""Convert graph modules of torchao's quantizers to programs, and apply changes back.

In such a module, parameters and buffers are attributes that its graph fetches. They
become constants of the program: ``sent_0``, ``sent_1`` and so on.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import torch
from delegraph_programs import argument_of, build_program, copy_node, flat_call
from delegraph_programs.exported_program import append_node
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

SENT = "sent_"


def program_of(module: GraphModule) -> ExportedProgram:
    """Return the program of a module, with its names, metadata and tensors."""
    root = torch.nn.Module()
    graph = Graph()
    copies = dict[Node, Node]()
    for k, node in enumerate(module.graph.nodes):
        copy = copy_node(graph, node, copies.__getitem__)
        copies[node] = copy
        if node.op == "get_attr":
            attribute = attrgetter(str(node.target))(module)
            copy.target = f"{SENT}{k}"
            setattr(root, copy.target, attribute)
            # torch does not set "val" when it folds batch norms
            if copy.meta["val"] is None and isinstance(attribute, torch.Tensor):
                copy.meta["val"] = attribute.detach()
    inputs = [
        InputSpec(InputKind.USER_INPUT, argument_of(node), None)
        for node in graph.nodes
        if node.op == "placeholder"
    ]
    returned = next(iter(reversed(graph.nodes))).args[0]
    values = returned if isinstance(returned, (tuple, list)) else (returned,)
    outputs = [
        OutputSpec(OutputKind.USER_OUTPUT, argument_of(value), None) for value in values
    ]
    source: Any = SimpleNamespace(
        state_dict={}, constants={}, range_constraints={}, _guards_code=()
    )
    call = flat_call(len(inputs), len(outputs))
    return build_program(root, graph, inputs, outputs, source, call, check=False)


def apply_changes(module: GraphModule, changed: GraphModule) -> None:
    """Apply changes of a module's program in another environment to the module.

    Nodes are identified by name. Existing nodes keep their metadata, and their tensors
    unless these were changed.
    """
    before = {node.name: node for node in module.graph.nodes}
    graph = Graph(owning_module=module)
    copies = dict[Node, Node]()
    for node in changed.graph.nodes:
        args = map_arg(node.args, copies.__getitem__)
        kwargs = map_arg(node.kwargs, copies.__getitem__)
        old = before.get(node.name)
        target = node.target
        if node.op == "get_attr":
            value = getattr(changed, str(node.target))
            target = _attribute(module, old, node.name, value)
        meta = node.meta if old is None else old.meta
        copies[node] = append_node(
            graph, node.op, target, args, kwargs, node.name, meta
        )
    graph.set_codegen(module.graph._codegen)
    module.graph = graph


def _attribute(module: GraphModule, old: Node | None, name: str, value: Any) -> str:
    """Return the attribute of the module that a node fetches: the old one if its value
    is the same, or a new one.
    """
    if old is not None and old.op == "get_attr":
        known = attrgetter(str(old.target))(module)
        if not isinstance(value, torch.Tensor) or _are_same(known, value):
            return str(old.target)
    number = 0
    while hasattr(module, f"{name}_{number}"):
        number += 1
    attribute = f"{name}_{number}"
    if isinstance(value, torch.Tensor):
        module.register_buffer(attribute, value)
    else:
        setattr(module, attribute, value)
    return attribute


def _are_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors have the same type, sizes and bits."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(_bits(a), _bits(b))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def tracer_names(module: GraphModule) -> Mapping[str, Any]:
    """Return torch's names of the functions that were called, by node.

    Forms leave these names out: quantizers may read them, but compilers do not.
    """
    return {
        n.name: list(n.meta["torch_fn"])
        for n in module.graph.nodes
        if "torch_fn" in n.meta
    }
