"""Subgraphs of higher-order calls (cond, while_loop, map, scan and the like), as programs of their own.

A branch or a loop's body is a GraphModule that the call takes as an operand. It is found as such an operand, and not by
a list of operators, so that new operators work. Every step of a lowering takes an ExportedProgram; so a subgraph is
extracted as one, goes through the steps as its parent does, and is put back.

What a subgraph is given are plain values, weights too. A parameter, buffer or constant of the parent that all calls of
a subgraph pass alike becomes one of the extracted program, so that a delegate in a branch can own its weights. The call
must then stop passing what no subgraph of it takes any more, and all subgraphs of one call take the same values: so
``put_back`` settles, call by call, which placeholders stay. A tensor that is an attribute of a subgraph, as one that
the user's branch makes of numbers, becomes a constant of the extracted program, and an attribute again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument
from torch.fx import Graph, GraphModule, Node

from ..exported_program import (
    argument_of,
    build_program,
    constant_placeholders,
    copy_node,
    flat_call,
    output_node,
    placeholders,
)

_SHARED = {"cond": 3, "while_loop": 3, "map_impl": 2, "scan": 3}
"""Operator -> position of the argument that lists what its subgraphs get as their last inputs, the same every time.

The inputs before these change from call to call of the subgraph: what a loop carries, the slices of a map. A ``cond``
has no such inputs.
"""
_POINTWISE = frozenset({"flex_attention", "flex_attention_backward", "associative_scan"})
"""Operators that apply their subgraphs to single elements: there is nothing to delegate inside."""


@dataclass
class Subgraph:
    """One subgraph: the attribute of the parent that holds it, the calls that it belongs to, and it as a program.

    ``names``: its placeholders, by position. ``single``: it returns a value that is not in a tuple, as the condition of
    a ``while_loop`` does; the program returns a tuple of one. ``tensors``: attributes of it that are tensors, by the
    name of the placeholder that stands for them in the program.
    """

    attribute: str
    calls: list[Node]
    program: ExportedProgram
    names: list[str]
    single: bool
    tensors: Mapping[str, torch.Tensor]


def extract_subgraphs(program: ExportedProgram) -> list[Subgraph]:
    """The subgraphs of the calls in ``program``, in graph order, as copies; not those inside of subgraphs."""
    calls: dict[str, list[Node]] = {}
    for call in _calls(program.graph):
        for owner in _owners(call):
            calls.setdefault(str(owner.target), []).append(call)
    if not calls:
        return []
    known = constant_placeholders(program)
    constants = {n: s for n, s in placeholders(program) if n in known}
    return [_extract(program, attribute, users, constants) for attribute, users in calls.items()]


def rewrite_subgraphs(program: ExportedProgram, rewrite: Callable[[ExportedProgram], ExportedProgram]) -> None:
    """Replace every subgraph of ``program``, whose graph may be changed, by what ``rewrite`` makes of it."""
    put_back(program, [(subgraph, rewrite(subgraph.program)) for subgraph in extract_subgraphs(program)])


def put_back(program: ExportedProgram, rewritten: Sequence[tuple[Subgraph, ExportedProgram]]) -> set[Node]:
    """Replace subgraphs by what they were rewritten to, and let calls pass only what some subgraph still takes.

    Returns the placeholders of ``program`` that some call no longer passes.
    """
    by_attribute = {subgraph.attribute: (subgraph, new) for subgraph, new in rewritten}
    dropped: set[Node] = set()
    for call in dict.fromkeys(call for subgraph, _ in rewritten for call in subgraph.calls):
        owners = [str(owner.target) for owner in _owners(call, program.graph_module)]
        pairs = [by_attribute[name] for name in owners if name in by_attribute]
        dropped |= _align_inputs(call, pairs, may_drop=len(pairs) == len(owners))
    for subgraph, new in rewritten:
        module: GraphModule = new.graph_module
        _fetch_tensors(module, subgraph.tensors)
        if subgraph.single:
            output = output_node(module.graph)
            output.args = (output.args[0][0],)  # type: ignore[index]
        module.recompile()
        setattr(program.graph_module, subgraph.attribute, module)
    return dropped


def graphs(module: GraphModule) -> Iterator[Graph]:
    """The graph of ``module``, and those of the subgraphs in it, at any depth; each once, outer ones first."""
    yield module.graph
    for name in {str(owner.target): None for call in _calls(module.graph) for owner in _owners(call, module)}:
        yield from graphs(getattr(module, name))


def all_nodes(module: GraphModule) -> Iterator[Node]:
    """The nodes of ``graphs(module)``."""
    return itertools.chain.from_iterable(g.nodes for g in graphs(module))


def next_handles(module: GraphModule) -> Iterator[int]:
    """Debug handles that no call of ``module`` has."""
    return itertools.count(1 + max((n.meta.get("debug_handle", 0) for n in all_nodes(module)), default=0))


def subgraphs_of(call: Node) -> list[GraphModule]:
    """The subgraphs of a higher-order call; none of any other node."""
    root: Any = call.graph.owning_module
    return [getattr(root, str(owner.target)) for owner in _owners(call)]


def _calls(graph: Graph) -> Iterable[Node]:
    """The nodes among which are all calls with subgraphs: most graphs have none, as they fetch no attribute."""
    return graph.nodes if graph.find_nodes(op="get_attr", sort=False) else ()


def _owners(call: Node, module: Any = None) -> Iterator[Node]:
    """The ``get_attr`` nodes of a higher-order call that hold its subgraphs."""
    if isinstance(call.target, HigherOrderOperator) and str(call.target) not in _POINTWISE:
        root = module or call.graph.owning_module
        for given in call.all_input_nodes:
            if given.op == "get_attr" and isinstance(getattr(root, str(given.target), None), GraphModule):
                yield given


def _extract(
    program: ExportedProgram, attribute: str, calls: list[Node], constants: Mapping[Node, InputSpec]
) -> Subgraph:
    module: Any = getattr(program.graph_module, attribute)
    graph = Graph(owning_module=module)
    copies, tensors = _tensor_placeholders(module, graph)
    for node in (n for n in module.graph.nodes if n not in copies):
        copies[node] = copy_node(graph, node, copies.__getitem__)
        copies[node].meta.pop("delegation_tag", None)
    output = output_node(graph)
    single = not isinstance(output.args[0], (tuple, list))
    values: tuple[Any, ...] = (output.args[0],) if single else tuple(output.args[0])  # type: ignore[arg-type]
    output.args = (values,)
    nodes = [n for n in graph.nodes if n.op == "placeholder" and n.name not in tensors]
    shared = [_shared_inputs(call, len(nodes)) for call in calls]
    made = [InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(name), f"{attribute}.{name}") for name in tensors]
    inputs = made + [_input_spec(n, {given.get(k) for given in shared}, constants) for k, n in enumerate(nodes)]
    outputs = [OutputSpec(OutputKind.USER_OUTPUT, argument_of(v), None) for v in values]
    call_spec = flat_call(sum(s.kind is InputKind.USER_INPUT for s in inputs), len(values))
    # Not checked here: whoever rewrites the subgraph checks what comes out.
    extracted = build_program(module, graph, inputs, outputs, program, call_spec, check=False)
    extracted.constants.update({str(s.target): t for s, t in zip(made, tensors.values(), strict=True)})
    return Subgraph(attribute, calls, extracted, [n.name for n in nodes], single, tensors)


def _tensor_placeholders(module: Any, graph: Graph) -> tuple[dict[Node, Node], dict[str, torch.Tensor]]:
    """Placeholders in ``graph`` for the tensors that are attributes of ``module``, which a program cannot have."""
    placeholders: dict[Node, Node] = {}
    tensors: dict[str, torch.Tensor] = {}
    for node in module.graph.nodes:
        held = getattr(module, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(held, torch.Tensor):
            placeholders[node] = new = graph.create_node("placeholder", node.name, name=node.name)
            new.meta, tensors[new.name] = dict(node.meta), held
    return placeholders, tensors


def _fetch_tensors(module: GraphModule, tensors: Mapping[str, torch.Tensor]) -> None:
    """The way back: what is left of those placeholders fetches the tensors again."""
    first = next(n for n in module.graph.nodes if n.op != "placeholder")
    for node in [n for n in module.graph.nodes if n.op == "placeholder" and n.name in tensors]:
        setattr(module, node.name, tensors[node.name])
        with module.graph.inserting_before(first):
            fetched = module.graph.create_node("get_attr", node.name)
        fetched.meta = node.meta
        node.replace_all_uses_with(fetched)
        module.graph.erase_node(node)


def _shared_inputs(call: Node, count: int) -> dict[int, Any]:
    """Position among a subgraph's ``count`` inputs -> what ``call`` passes there every time."""
    position = _SHARED.get(str(call.target))
    given: Any = () if position is None else call.args[position]
    return dict(enumerate(given, start=count - len(given)))


def _input_spec(node: Node, passed: set[Any], constants: Mapping[Node, InputSpec]) -> InputSpec:
    """A constant if all calls pass the same constant of the parent; otherwise something that arrives at run time."""
    spec = constants.get(next(iter(passed))) if len(passed) == 1 else None
    if spec is None:
        return InputSpec(InputKind.USER_INPUT, argument_of(node), None)
    return InputSpec(spec.kind, argument_of(node), spec.target, spec.persistent)


def _align_inputs(call: Node, pairs: Sequence[tuple[Subgraph, ExportedProgram]], may_drop: bool) -> set[Node]:
    """Drop operands of ``call`` that no subgraph uses any more; give back a placeholder that only some dropped.

    Operands stay if a subgraph has other calls, which pass them still, or if ``may_drop`` is false, since not all
    subgraphs of the call were rewritten.
    """
    may_drop = may_drop and all(len(subgraph.calls) == 1 for subgraph, _ in pairs)
    shared = _shared_inputs(call, len(pairs[0][0].names)) if may_drop else {}
    used: set[int] = set()
    constant: set[int] = set()
    for subgraph, new in pairs:
        names = {n.name for n in new.graph.nodes if n.op == "placeholder" and n.users}
        used.update(k for k, name in enumerate(subgraph.names) if name in names)
        specs = enumerate(subgraph.program.graph_signature.input_specs[len(subgraph.tensors) :])
        constant.update(k for k, spec in specs if spec.kind is not InputKind.USER_INPUT)
    dropped = constant.intersection(shared) - used
    for subgraph, new in pairs:
        _align_placeholders(subgraph, new.graph, dropped)
    if dropped:
        position = _SHARED[str(call.target)]
        kept = [v for k, v in shared.items() if k not in dropped]
        call.update_arg(position, tuple(kept) if isinstance(call.args[position], tuple) else kept)
    return {shared[k] for k in dropped}


def _align_placeholders(subgraph: Subgraph, graph: Graph, dropped: set[int]) -> None:
    """Let the placeholders of ``graph`` be those of ``subgraph`` that are not ``dropped``, in order."""
    present = {n.name: n for n in graph.nodes if n.op == "placeholder"}
    original = {n.name: n for n in subgraph.program.graph.nodes if n.op == "placeholder"}
    for name in (subgraph.names[k] for k in dropped):
        if name in present:
            graph.erase_node(present[name])
    before = next(iter(graph.nodes))
    for name in (name for k, name in enumerate(subgraph.names) if k not in dropped):
        if name not in present:
            with graph.inserting_before(before):
                present[name] = graph.create_node("placeholder", name, name=name)
            present[name].meta = dict(original[name].meta)
        before = present[name].next
