"""Extracts subgraphs of higher-order calls (cond, while_loop, map, scan) as programs.

A branch or a loop's body is a GraphModule that the call takes as an operand. It is
found as an operand, and not by a list of operators, so that new operators work. Every
step of a lowering takes an ExportedProgram. So a subgraph is extracted as one, goes
through the steps as its parent program does, and is put back.

In a subgraph, weights are inputs like all other values. If all calls pass the same
parameter, buffer or constant of the parent, it becomes one of the extracted program. So
a delegate in a branch can own its weights, and the branch no longer takes them. The
call must then stop passing them. All subgraphs of one call take the same inputs, so
``put_back`` decides for each call which placeholders stay.

The code of a branch may make a tensor from numbers, which is an attribute of the
subgraph. It becomes a constant of the extracted program, and an attribute again when
the subgraph is put back.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node

from .exported_program import (
    argument_of,
    build_program,
    constant_placeholders,
    copy_node,
    flat_call,
    output_node,
    placeholders,
)

_SHARED = {"cond": 3, "while_loop": 3, "map_impl": 2, "scan": 3}
"""Operator -> position of the argument that lists the constant inputs of its subgraphs.

These are the last inputs of a subgraph. The inputs before them change from one run to
the next: values carried by a loop, the slices of a map. A ``cond`` has no such inputs.
"""
_POINTWISE = frozenset(
    {"flex_attention", "flex_attention_backward", "associative_scan"}
)
"""Operators that apply subgraphs to single elements; nothing can be delegated in them.
"""


@dataclass
class Subgraph:
    """One subgraph as a program, with its place in the parent program.

    ``attribute``: the parent's attribute that holds it. ``calls``: the calls that use
    it. ``names``: the names of its placeholders, by position. ``single``: the subgraph
    returns a bare value instead of a tuple, as the condition of a ``while_loop`` does;
    ``program`` returns a tuple of one. ``tensors``: name of a placeholder of
    ``program`` -> the tensor attribute of the subgraph.
    """

    attribute: str
    calls: list[Node]
    program: ExportedProgram
    names: list[str]
    single: bool
    tensors: Mapping[str, torch.Tensor]


def extract_subgraphs(program: ExportedProgram) -> list[Subgraph]:
    """Return copies of the outermost subgraphs of ``program``, in graph order."""
    calls: dict[str, list[Node]] = {}
    for call in _possible_calls(program.graph):
        for node in _fetching_nodes(call):
            calls.setdefault(str(node.target), []).append(call)
    if not calls:
        return []
    constant_nodes = constant_placeholders(program)
    constants = {n: s for n, s in placeholders(program) if n in constant_nodes}
    return [
        _as_program(program, attribute, users, constants)
        for attribute, users in calls.items()
    ]


def rewrite_subgraphs(
    program: ExportedProgram, rewrite: Callable[[ExportedProgram], ExportedProgram]
) -> None:
    """Replace each subgraph of ``program`` by its result of the function ``rewrite``."""
    subgraphs = extract_subgraphs(program)
    put_back(program, [(subgraph, rewrite(subgraph.program)) for subgraph in subgraphs])


def put_back(
    program: ExportedProgram, rewritten: Sequence[tuple[Subgraph, ExportedProgram]]
) -> set[Node]:
    """Replace subgraphs by the programs that they were rewritten to.

    ``rewritten``: pairs of a subgraph and its new program. If no subgraph of a call
    takes an operand any more, the call stops passing it. Returns those operands, which
    are placeholders of ``program``.
    """
    by_attribute = {subgraph.attribute: (subgraph, new) for subgraph, new in rewritten}
    dropped: set[Node] = set()
    calls = itertools.chain.from_iterable(subgraph.calls for subgraph, _ in rewritten)
    for call in dict.fromkeys(calls):
        attributes = [
            str(node.target) for node in _fetching_nodes(call, program.graph_module)
        ]
        pairs = [by_attribute[name] for name in attributes if name in by_attribute]
        dropped |= _align_inputs(call, pairs, may_drop=len(pairs) == len(attributes))
    for subgraph, new in rewritten:
        module: GraphModule = new.graph_module
        _fetch_tensors(module, subgraph.tensors)
        # the program returns a tuple of one, the call expects the bare value
        if subgraph.single:
            output = output_node(module.graph)
            output.args = (output.args[0][0],)  # type: ignore[index]
        module.recompile()
        setattr(program.graph_module, subgraph.attribute, module)
    return dropped


def graphs(module: GraphModule) -> Iterator[Graph]:
    """Yield the graphs of ``module`` and its nested subgraphs once, outer ones first."""
    yield module.graph
    # a dict as an ordered set: several calls may take one subgraph
    names: dict[str, None] = {}
    for call in _possible_calls(module.graph):
        names.update((str(node.target), None) for node in _fetching_nodes(call, module))
    for name in names:
        yield from graphs(getattr(module, name))


def all_nodes(module: GraphModule) -> Iterator[Node]:
    """Return the nodes of ``module`` and its nested subgraphs."""
    return itertools.chain.from_iterable(g.nodes for g in graphs(module))


def next_handles(module: GraphModule) -> Iterator[int]:
    """Yield debug handles that no call of ``module`` has yet."""
    used = (n.meta.get("debug_handle", 0) for n in all_nodes(module))
    return itertools.count(1 + max(used, default=0))


def subgraphs_of(call: Node) -> list[GraphModule]:
    """Return the subgraphs that a higher-order call takes; empty for any other node."""
    root: Any = call.graph.owning_module
    return [getattr(root, str(node.target)) for node in _fetching_nodes(call)]


def _possible_calls(graph: Graph) -> Iterable[Node]:
    """Return the nodes that may be calls with subgraphs: all nodes, or none.

    Subgraphs are attributes that nodes fetch. Most graphs have no such node, so they
    need no search.
    """
    return graph.nodes if graph.find_nodes(op="get_attr", sort=False) else ()


def _fetching_nodes(call: Node, module: Any = None) -> Iterator[Node]:
    """Yield the ``get_attr`` nodes that fetch the subgraphs of a higher-order call.

    ``module`` has the subgraphs as attributes; by default it is the module that owns
    the graph of ``call``.
    """
    if not isinstance(call.target, HigherOrderOperator):
        return
    if str(call.target) in _POINTWISE:
        return
    root = module or call.graph.owning_module
    for operand in call.all_input_nodes:
        if operand.op == "get_attr":
            if isinstance(getattr(root, str(operand.target), None), GraphModule):
                yield operand


def _as_program(
    program: ExportedProgram,
    attribute: str,
    calls: list[Node],
    constants: Mapping[Node, InputSpec],
) -> Subgraph:
    """Return the subgraph ``attribute`` as a program. ``calls``: the calls that use it.

    ``constants``: the parent's constant placeholders, with their specs.
    """
    module: Any = getattr(program.graph_module, attribute)
    graph = Graph(owning_module=module)
    copies, tensors = _tensor_placeholders(module, graph)
    for node in module.graph.nodes:
        if node not in copies:
            copies[node] = copy_node(graph, node, copies.__getitem__)
            copies[node].meta.pop("delegation_tag", None)
    output = output_node(graph)
    # a program returns a tuple, also where the subgraph returns a bare value
    single = not isinstance(output.args[0], (tuple, list))
    values: tuple[Any, ...] = (output.args[0],) if single else tuple(output.args[0])  # type: ignore[arg-type]
    output.args = (values,)
    # the tensors that were attributes of the subgraph, as constants of the program
    added = [
        InputSpec(
            InputKind.CONSTANT_TENSOR, TensorArgument(name), f"{attribute}.{name}"
        )
        for name in tensors
    ]
    inputs = list(added)
    nodes = [n for n in graph.nodes if n.op == "placeholder" and n.name not in tensors]
    # for each call: position of an input -> operand
    operands_of_calls = [_shared_inputs(call, len(nodes)) for call in calls]
    for position, node in enumerate(nodes):
        passed = {operands.get(position) for operands in operands_of_calls}
        inputs.append(_input_spec(node, passed, constants))
    outputs = [OutputSpec(OutputKind.USER_OUTPUT, argument_of(v), None) for v in values]
    call_spec = flat_call(
        sum(s.kind is InputKind.USER_INPUT for s in inputs), len(values)
    )
    # Not checked here: the step that rewrites the subgraph checks its result.
    extracted = build_program(
        module, graph, inputs, outputs, program, call_spec, check=False
    )
    extracted.constants.update(
        {str(s.target): t for s, t in zip(added, tensors.values(), strict=True)}
    )
    return Subgraph(
        attribute, calls, extracted, [n.name for n in nodes], single, tensors
    )


def _tensor_placeholders(
    module: Any, graph: Graph
) -> tuple[dict[Node, Node], dict[str, torch.Tensor]]:
    """Add a placeholder to ``graph`` for each tensor attribute that ``module`` fetches.

    A program cannot have such attributes. Returns ``get_attr`` node -> placeholder, and
    name of the placeholder -> tensor.
    """
    copies: dict[Node, Node] = {}
    tensors: dict[str, torch.Tensor] = {}
    for node in module.graph.find_nodes(op="get_attr"):
        attribute = getattr(module, str(node.target), None)
        if isinstance(attribute, torch.Tensor):
            new = graph.create_node("placeholder", node.name, name=node.name)
            new.meta = dict(node.meta)
            copies[node] = new
            tensors[new.name] = attribute
    return copies, tensors


def _fetch_tensors(module: GraphModule, tensors: Mapping[str, torch.Tensor]) -> None:
    """Undo ``_tensor_placeholders``: fetch the tensors as attributes of ``module``."""
    first = next(n for n in module.graph.nodes if n.op != "placeholder")
    for node in module.graph.find_nodes(op="placeholder"):
        if node.name not in tensors:
            continue
        setattr(module, node.name, tensors[node.name])
        with module.graph.inserting_before(first):
            fetched = module.graph.create_node("get_attr", node.name)
        fetched.meta = node.meta
        node.replace_all_uses_with(fetched)
        module.graph.erase_node(node)


def _shared_inputs(call: Node, count: int) -> dict[int, Any]:
    """Return position of a subgraph's input -> the operand that ``call`` passes to it.

    Only the last inputs, which get the same operands in each iteration, are in it. The
    first ones, which a loop carries, are left out. ``count``: the number of the
    subgraph's inputs. Empty for an operator that ``_SHARED`` does not list.
    """
    position = _SHARED.get(str(call.target))
    operands: Any = () if position is None else call.args[position]
    return dict(enumerate(operands, start=count - len(operands)))


def _input_spec(
    node: Node, passed: set[Any], constants: Mapping[Node, InputSpec]
) -> InputSpec:
    """Return the spec of ``node``, an input of a subgraph.

    ``passed``: the operands that calls pass to it, as nodes of the parent; None for a
    value that a loop carries. If all calls pass the same constant of the parent, the
    input becomes that constant. Otherwise it is a run-time input. ``constants``: the
    parent's constant placeholders, with their specs.
    """
    spec = constants.get(next(iter(passed))) if len(passed) == 1 else None
    if spec is None:
        return InputSpec(InputKind.USER_INPUT, argument_of(node), None)
    return InputSpec(spec.kind, argument_of(node), spec.target, spec.persistent)


def _align_inputs(
    call: Node, pairs: Sequence[tuple[Subgraph, ExportedProgram]], may_drop: bool
) -> set[Node]:
    """Drop operands of ``call`` that none of its subgraphs uses any more; return them.

    ``pairs``: the rewritten subgraphs of ``call``, each with its new program. A
    placeholder that is missing in only some of them is restored there. No operand is
    dropped if a subgraph has other calls, which still pass it, or without ``may_drop``:
    then some subgraphs of ``call`` were not rewritten.
    """
    dropped: set[int] = set()  # positions among the inputs of a subgraph
    operands: dict[int, Any] = {}
    if may_drop and all(len(subgraph.calls) == 1 for subgraph, _ in pairs):
        operands = _shared_inputs(call, len(pairs[0][0].names))
        dropped = _unused_constants(pairs).intersection(operands)
    for subgraph, new in pairs:
        _align_placeholders(subgraph, new.graph, dropped)
    if dropped:
        position = _SHARED[str(call.target)]
        remaining = [v for k, v in operands.items() if k not in dropped]
        call.update_arg(
            position,
            tuple(remaining) if isinstance(call.args[position], tuple) else remaining,
        )
    return {operands[k] for k in dropped}


def _unused_constants(pairs: Sequence[tuple[Subgraph, ExportedProgram]]) -> set[int]:
    """Return positions of inputs that are constants, and that no new program uses.

    Delegates in the new programs own these constants. ``pairs``: see ``_align_inputs``.
    """
    used: set[int] = set()
    constant: set[int] = set()
    for subgraph, new in pairs:
        names = {n.name for n in new.graph.nodes if n.op == "placeholder" and n.users}
        used.update(k for k, name in enumerate(subgraph.names) if name in names)
        # the first specs are those of tensor attributes, which no call passes
        specs = enumerate(
            subgraph.program.graph_signature.input_specs[len(subgraph.tensors) :]
        )
        constant.update(k for k, spec in specs if spec.kind is not InputKind.USER_INPUT)
    return constant - used


def _align_placeholders(subgraph: Subgraph, graph: Graph, dropped: set[int]) -> None:
    """Give ``graph`` the placeholders of ``subgraph``, from which it was rewritten.

    Placeholders at the positions ``dropped`` are erased; others that are missing in
    ``graph`` are inserted.
    """
    present = {n.name: n for n in graph.nodes if n.op == "placeholder"}
    original = {
        n.name: n for n in subgraph.program.graph.nodes if n.op == "placeholder"
    }
    for name in (subgraph.names[k] for k in dropped):
        if name in present:
            graph.erase_node(present[name])
    # the node before which the next placeholder belongs
    following = next(iter(graph.nodes))
    for position, name in enumerate(subgraph.names):
        if position in dropped:
            continue
        if name not in present:
            with graph.inserting_before(following):
                present[name] = graph.create_node("placeholder", name, name=name)
            present[name].meta = dict(original[name].meta)
        following = present[name].next
