"""Bodies of higher-order calls (cond, while_loop, map, scan and the like), as programs of their own.

A body is a GraphModule operand, found as such and not by the operator's name. Taken out, it is an ExportedProgram that
goes through every step as its parent does; put back, it replaces what it was. A parameter, buffer or constant of the
parent that every call of the body gets alike is one in the body too, so that a delegate in a branch can own it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch._ops import HigherOrderOperator
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec
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
"""Operator -> the argument whose values its bodies get as their last inputs, the same ones with every call of them."""
_POINTWISE = frozenset({"flex_attention", "flex_attention_backward", "associative_scan"})
"""Operators whose bodies are mapped over elements by the operator itself: there is nothing to delegate inside."""


@dataclass
class Subgraph:
    """One body: the attribute of the parent that holds it, the calls that it belongs to, and it as a program.

    ``names``: its placeholders, by position. ``single``: it returns a value that is not in a tuple, as the condition of
    a ``while_loop`` does; the program returns a tuple of one.
    """

    attribute: str
    calls: list[Node]
    program: ExportedProgram
    names: list[str]
    single: bool


def extract_subgraphs(program: ExportedProgram) -> list[Subgraph]:
    """The bodies of the calls in ``program``, in graph order; not those inside of bodies. Their graphs are copies."""
    found: dict[str, list[Node]] = {}
    for call in program.graph.nodes:
        for owner in _owners(call):
            found.setdefault(str(owner.target), []).append(call)
    constants = _constants(program) if found else {}
    return [_taken_out(program, name, calls, constants) for name, calls in found.items()]


def graphs(module: GraphModule) -> Iterator[Graph]:
    """The graph of ``module``, and those of the bodies in it, at any depth; each once, outer ones first."""
    yield module.graph
    inside = {str(owner.target): None for call in module.graph.nodes for owner in _owners(call, module)}
    for name in inside:
        yield from graphs(getattr(module, name))


def all_nodes(module: GraphModule) -> Iterator[Node]:
    """The nodes of ``graphs(module)``."""
    return itertools.chain.from_iterable(g.nodes for g in graphs(module))


def next_handles(module: GraphModule) -> Iterator[int]:
    """Debug handles that no call of ``module`` has."""
    return itertools.count(1 + max((n.meta.get("debug_handle", 0) for n in all_nodes(module)), default=0))


def rewrite_subgraphs(
    program: ExportedProgram, step: Callable[[ExportedProgram], ExportedProgram]
) -> list[ExportedProgram]:
    """Let every body of ``program``, whose graph may be changed, become what ``step`` makes of it; returns that."""
    found = extract_subgraphs(program)
    made = [step(body.program) for body in found]
    put_back(program, list(zip(found, made, strict=True)))
    return made


def put_back(program: ExportedProgram, lowered: Sequence[tuple[Subgraph, ExportedProgram]]) -> set[Node]:
    """Let bodies be what they were lowered to, and the calls pass only what some body still takes.

    Returns the placeholders of ``program`` that some call no longer passes.
    """
    new = {body.attribute: made for body, made in lowered}
    known = {body.attribute: body for body, _ in lowered}
    dropped: set[Node] = set()
    for call in dict.fromkeys(call for body, _ in lowered for call in body.calls):
        mine = [(known[o.target], new[o.target]) for o in _owners(call, program.graph_module) if o.target in new]
        dropped |= _narrow(call, mine, len(mine) == len(list(_owners(call, program.graph_module))))
    for body, made in lowered:
        setattr(program.graph_module, body.attribute, _module(body, made))
    return dropped


def subgraphs_of(call: Node) -> list[GraphModule]:
    """The bodies of a higher-order call; none of any other node."""
    root: Any = call.graph.owning_module
    return [getattr(root, str(owner.target)) for owner in _owners(call)]


def _owners(call: Node, module: Any = None) -> Iterator[Node]:
    """The ``get_attr`` nodes of a higher-order call that hold its bodies."""
    if not isinstance(call.target, HigherOrderOperator) or _name(call) in _POINTWISE:
        return
    root = module or call.graph.owning_module
    for given in call.all_input_nodes:
        if given.op == "get_attr" and isinstance(getattr(root, str(given.target), None), GraphModule):
            yield given


def _name(call: Node) -> str:
    return str(getattr(call.target, "__name__", call.target))


def _constants(program: ExportedProgram) -> dict[Node, InputSpec]:
    known = constant_placeholders(program)
    return {n: s for n, s in placeholders(program) if n in known}


def _taken_out(program: ExportedProgram, name: str, calls: list[Node], constants: dict[Node, InputSpec]) -> Subgraph:
    module: Any = getattr(program.graph_module, name)
    graph, single = _copied(module)
    nodes = [n for n in graph.nodes if n.op == "placeholder"]
    same = [_shared(call, len(nodes)) for call in calls]
    inputs = [_input(n, {shared.get(k) for shared in same}, constants) for k, n in enumerate(nodes)]
    values: Any = output_node(graph).args[0]
    outputs = [OutputSpec(OutputKind.USER_OUTPUT, argument_of(v), None) for v in values]
    passed = sum(s.kind is InputKind.USER_INPUT for s in inputs)
    made = build_program(module, graph, inputs, outputs, program, flat_call(passed, len(values)), check=False)
    return Subgraph(name, calls, made, [n.name for n in nodes], single)


def _copied(module: GraphModule) -> tuple[Graph, bool]:
    """A copy of the graph that returns a tuple, without tags, and whether the original returned a single value."""
    graph = Graph(owning_module=module)
    env: dict[Node, Node] = {}
    for node in module.graph.nodes:
        env[node] = copy_node(graph, node, env.__getitem__)
        env[node].meta.pop("delegation_tag", None)
    output = output_node(graph)
    single = not isinstance(output.args[0], (tuple, list))
    output.args = ((output.args[0],) if single else tuple(output.args[0]),)  # type: ignore[arg-type]
    return graph, single


def _shared(call: Node, count: int) -> dict[int, Any]:
    """Position among a body's ``count`` inputs -> what ``call`` passes there every time."""
    name = _name(call)
    given: Any = call.args[_SHARED[name]] if name in _SHARED else ()
    return dict(enumerate(given, start=count - len(given)))


def _input(node: Node, passed: set[Any], constants: dict[Node, InputSpec]) -> InputSpec:
    """A constant if all calls pass the same constant of the parent; otherwise something that arrives at run time."""
    spec = constants.get(next(iter(passed))) if len(passed) == 1 else None
    if spec is None:
        return InputSpec(InputKind.USER_INPUT, argument_of(node), None)
    return InputSpec(spec.kind, argument_of(node), spec.target, spec.persistent)


def _narrow(call: Node, mine: Sequence[tuple[Subgraph, ExportedProgram]], whole: bool) -> set[Node]:
    """Drop operands of ``call`` that none of its bodies uses any more; give bodies back what only others dropped."""
    count = len(mine[0][0].names)
    shared = _shared(call, count) if whole and all(len(b.calls) == 1 for b, _ in mine) else {}
    needed = {k for body, made in mine for k in _used(body, made)}
    gone = {k for k, v in shared.items() if k not in needed and any(_is_constant(b, k) for b, _ in mine)}
    for body, made in mine:
        _realign(body, made, gone)
    if not gone:
        return set()
    kept = [v for k, v in shared.items() if k not in gone]
    place = _SHARED[_name(call)]
    call.update_arg(place, tuple(kept) if isinstance(call.args[place], tuple) else kept)
    return {shared[k] for k in gone}


def _used(body: Subgraph, made: ExportedProgram) -> Iterable[int]:
    used = {n.name for n in made.graph.nodes if n.op == "placeholder" and n.users}
    return (k for k, name in enumerate(body.names) if name in used)


def _is_constant(body: Subgraph, position: int) -> bool:
    return body.program.graph_signature.input_specs[position].kind is not InputKind.USER_INPUT


def _realign(body: Subgraph, made: ExportedProgram, gone: set[int]) -> None:
    """Let the placeholders be those at the positions that are not ``gone``, in order."""
    have = {n.name: n for n in made.graph.nodes if n.op == "placeholder"}
    old = {n.name: n for n in body.program.graph.nodes if n.op == "placeholder"}
    for name in (body.names[k] for k in gone if body.names[k] in have):
        made.graph.erase_node(have.pop(name))
    before = next(iter(made.graph.nodes))
    for name in (name for k, name in enumerate(body.names) if k not in gone):
        if name not in have:
            with made.graph.inserting_before(before):
                have[name] = made.graph.create_node("placeholder", name, name=name)
            have[name].meta = dict(old[name].meta)
        before = have[name].next


def _module(body: Subgraph, made: ExportedProgram) -> GraphModule:
    module: GraphModule = made.graph_module
    if body.single:
        values: Any = output_node(module.graph).args[0]
        output_node(module.graph).args = (values[0],)
    module.recompile()
    return module
