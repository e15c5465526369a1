"""Graph modules, as torchao's quantizers get them, as programs that have a form; and
what was changed of one put back.

In such a module, parameters and buffers are attributes that its graph fetches. They are
constants of the program, ``sent_0``, ``sent_1`` and so on.
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
    """The program of a module.

    It has the names, the metadata and the tensors of the module.
    """
    root = torch.nn.Module()
    graph = Graph()
    copies = dict[Node, Node]()
    for k, node in enumerate(module.graph.nodes):
        copies[node] = copy = copy_node(graph, node, copies.__getitem__)
        if node.op == "get_attr":
            attribute = attrgetter(str(node.target))(module)
            copy.target = f"{SENT}{k}"
            setattr(root, copy.target, attribute)
            if copy.meta["val"] is None and isinstance(attribute, torch.Tensor):
                # torch does not set it where it folds batch norms
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
    like: Any = SimpleNamespace(
        state_dict={}, constants={}, range_constraints={}, _guards_code=()
    )
    return build_program(
        root,
        graph,
        inputs,
        outputs,
        like,
        flat_call(len(inputs), len(outputs)),
        check=False,
    )


def follow(module: GraphModule, changed: GraphModule) -> None:
    """Change a module as the program that was made of it was changed elsewhere.

    Nodes go by their names: those that were there keep their metadata and their
    tensors, unless these are other ones.
    """
    before = {node.name: node for node in module.graph.nodes}
    graph = Graph(owning_module=module)
    copies = dict[Node, Node]()
    for node in changed.graph.nodes:
        args, kwargs = (
            map_arg(given, copies.__getitem__) for given in (node.args, node.kwargs)
        )
        old = before.get(node.name)
        target = node.target
        if node.op == "get_attr":
            target = _attribute(
                module, old, node.name, getattr(changed, str(node.target))
            )
        meta = node.meta if old is None else old.meta
        copies[node] = append_node(
            graph, node.op, target, args, kwargs, node.name, meta
        )
    graph.set_codegen(module.graph._codegen)
    module.graph = graph


def _attribute(module: GraphModule, old: Node | None, name: str, value: Any) -> str:
    """The attribute of the module that a node fetches: that of the node before, or a
    new one.
    """
    if old is not None and old.op == "get_attr":
        known = attrgetter(str(old.target))(module)
        if not isinstance(value, torch.Tensor) or _are_same(known, value):
            return str(old.target)
    made = next(
        n
        for k in range(len(module.graph.nodes) + 2)
        if not hasattr(module, n := f"{name}_{k}")
    )
    if isinstance(value, torch.Tensor):
        module.register_buffer(made, value)
    else:
        setattr(module, made, value)
    return made


def _are_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same type, sizes and elements, NaN included."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(_bits(a), _bits(b))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def tracer_names(module: GraphModule) -> Mapping[str, Any]:
    """What torch says a call was made of, by node: no part of a form, since no compiler
    reads it; quantizers may.
    """
    return {
        n.name: list(n.meta["torch_fn"])
        for n in module.graph.nodes
        if "torch_fn" in n.meta
    }
