"""Step 1: a private copy of the program in the form that backends see.

Functional, without wrappers that only switch gradients on and off, a debug handle on every call; the bodies of
higher-order calls too. The caller's program is never changed, and the graph is copied, not retraced.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument
from torch.fx import Graph, GraphModule, Node

from ...errors import InputError
from ...exported_program import CONSTANT_KINDS, MUTATIONS, argument_of, build_program, copy_node, output_node, root_call
from ...source import source_of
from ..subgraphs import next_handles, rewrite_subgraphs, subgraphs_of
from .retrace import check_retraced, retrace
from .writes import Mutations, Reason, functionalize

aten = torch.ops.aten
_GRADIENT_WRAPPER = torch.ops.higher_order.wrap_with_set_grad_enabled
_AUTOCAST = torch.ops.higher_order.wrap_with_autocast
_VMAP = "torch._functorch.predispatch"
"""Where calls come from that begin and end the mapping of those between them."""
_DROPPED = frozenset({aten._assert_tensor_metadata.default})
"""Checks of what an exported program fixes anyway."""
_IDENTITIES = frozenset({aten.lift_fresh_copy.default, aten.detach.default, aten.alias.default})
"""Calls that give their argument once nothing is written in place."""
_DROPOUTS = frozenset(
    getattr(aten, name + suffix).default
    for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
    for suffix in ("", "_")
)
_CASTS = frozenset({aten.to.dtype, aten.to.device, aten.to.dtype_layout})


def normalize(program: ExportedProgram) -> tuple[ExportedProgram, list[str]]:
    """The normalized copy of ``program``, and notes for the report."""
    made, unproven = _functional(program, next_handles(program.graph_module))
    if not unproven:
        return made, []
    retraced = retrace(program, unproven[0])
    made, still = _functional(retraced, next_handles(retraced.graph_module))
    if still:
        text = f"the program cannot be made functional: {still[0].text}"
        raise InputError("input-invalid", text, source=still[0].source)
    doubt = check_retraced(program, made, unproven[0])
    notes = [f"retraced, because of {reason}" for reason in unproven]
    return made, [*notes, f"not compared with eager after that, since {doubt}"] if doubt else notes


def _functional(program: ExportedProgram, handles: Iterator[int]) -> tuple[ExportedProgram, list[Reason]]:
    """A copy in functional form, its bodies too; what could not be made functional, and why."""
    graph = _Copy(program.graph_module).graph
    _spread(graph)
    _drop(graph, _returns_itself)
    hidden = next(filter(None, map(_hides, graph.nodes)), None)
    if hidden:
        return program, [hidden]
    mutations = functionalize(graph, _state(program, graph))
    if mutations.unproven:
        return program, mutations.unproven
    inputs, outputs = _specs(program, graph, mutations)
    _drop(graph, lambda node: node.target in _IDENTITIES)
    _drop_dead(graph)
    _refresh(outputs, graph)
    number_calls(graph, handles, mutations.origin)
    made = build_program(program.graph_module, graph, inputs, outputs, program, root_call(program), check=False)
    unproven = _normalize_bodies(made, handles)
    if not unproven:
        made.validate()  # type: ignore[no-untyped-call]
    return made, unproven


def _normalize_bodies(program: ExportedProgram, handles: Iterator[int]) -> list[Reason]:
    """The same for the bodies in ``program``; those that write what they were given are not functional."""
    unproven: list[Reason] = []

    def step(body: ExportedProgram) -> ExportedProgram:
        made, why = _functional(body, handles)
        unproven.extend(Reason(f"{reason.text} (inside a branch)", reason.source) for reason in why)
        if any(s.kind in MUTATIONS for s in made.graph_signature.output_specs):
            unproven.append(Reason("a write inside a branch to what comes from outside"))
        return body if unproven else made

    rewrite_subgraphs(program, step)
    return unproven


def number_calls(graph: Graph, handles: Iterator[int], origin: Mapping[Node, Node] = MappingProxyType({})) -> None:
    """Give every call that has none a debug handle, in graph order, from ``handles``.

    ``origin``: call that was added -> the one that it was added for, whose handle it gets.
    """
    for node in (n for n in graph.nodes if n.op == "call_function"):
        first = origin.get(node, node)
        if "debug_handle" not in first.meta:
            first.meta["debug_handle"] = next(handles)
        node.meta["debug_handle"] = first.meta["debug_handle"]


def _state(program: ExportedProgram, graph: Graph) -> set[Node]:
    return {n for n, s in _pairs(graph, program.graph_signature.input_specs) if s.kind in CONSTANT_KINDS}


class _Copy:
    """A copy of a graph with gradient wrappers inlined."""

    def __init__(self, module: GraphModule) -> None:
        self.graph = Graph(owning_module=module)
        self.env: dict[Node, Any] = {}
        self._body(module)

    def _body(self, module: GraphModule) -> Any:
        for node in module.graph.nodes:
            self.env[node] = self._node(node, module)
        return self.env[output_node(module.graph)]

    def _node(self, node: Node, module: GraphModule) -> Any:
        if node.target is _GRADIENT_WRAPPER:
            return self._inline(node, module)
        if node.target is operator.getitem and isinstance(self.env[node.args[0]], tuple):  # type: ignore[index]
            return self.env[node.args[0]][node.args[1]]  # type: ignore[index]
        if node.op == "get_attr" and all(u.target is _GRADIENT_WRAPPER for u in node.users):
            return None
        if node.op == "placeholder" and node in self.env:
            return self.env[node]
        if node.op == "output" and module is not self.graph.owning_module:
            return torch.fx.map_arg(node.args[0], lambda n: self.env[n])
        if node.target in _DROPPED:
            return None
        made = copy_node(self.graph, node, lambda n: self.env[n])
        made.meta.pop("delegation_tag", None)  # of an earlier lowering that this program is a partition of
        return made

    def _inline(self, node: Node, module: GraphModule) -> tuple[Any, ...]:
        owner: Any = node.args[1]
        body: Any = getattr(module, owner.target)
        inner = [n for n in body.graph.nodes if n.op == "placeholder"]
        self.env.update(zip(inner, torch.fx.map_arg(node.args[2:], lambda n: self.env[n]), strict=True))
        return tuple(self._body(body))


def _specs(program: ExportedProgram, graph: Graph, found: Mutations) -> tuple[list[InputSpec], list[OutputSpec]]:
    """Signature of the copy: mutations first, then what the program returned; the output node is rewritten to match."""
    inputs = list(program.graph_signature.input_specs)
    known = [s for s in program.graph_signature.output_specs if s.kind in MUTATIONS]
    new = [
        _write(spec, node, found.last_value[node]) for node, spec in _pairs(graph, inputs) if node in found.last_value
    ]
    output = output_node(graph)
    values: Any = output.args[0]
    results = [*values[: len(known)], *(found.last_value[n] for n, _ in _pairs(graph, inputs) if n in found.last_value)]
    output.args = ((*results, *values[len(known) :]),)
    rest = program.graph_signature.output_specs[len(known) :]
    return inputs, [*known, *new, *rest]


def _pairs(graph: Graph, inputs: Sequence[InputSpec]) -> list[tuple[Node, InputSpec]]:
    return list(zip((n for n in graph.nodes if n.op == "placeholder"), inputs, strict=True))


def _write(spec: InputSpec, node: Node, value: Node) -> OutputSpec:
    if spec.kind is InputKind.CONSTANT_TENSOR:
        hint = f"self.register_buffer({spec.target!r}, ..., persistent=False)"
        raise InputError("input-invalid", f"the program writes {spec.target}, which is no buffer", hint=hint)
    kinds = {InputKind.BUFFER: OutputKind.BUFFER_MUTATION, InputKind.PARAMETER: OutputKind.PARAMETER_MUTATION}
    kind = kinds.get(spec.kind, OutputKind.USER_INPUT_MUTATION)
    target = node.name if kind is OutputKind.USER_INPUT_MUTATION else spec.target
    return OutputSpec(kind, TensorArgument(value.name), target)


def _hides(node: Node) -> Reason | None:
    """What does more than the graph says, to calls in or after it."""
    if node.target is _AUTOCAST:
        inside = (
            source_of(n) for body in subgraphs_of(node) for n in body.graph.nodes
        )  # torch records none of its own
        return Reason("wrap_with_autocast: its casts show only when it is traced", next(filter(None, inside), None))
    if node.op == "call_function" and getattr(node.target, "__module__", "") == _VMAP:
        return Reason("vmap: what it maps over shows only when it is traced", source_of(node))
    return None


def _spread(graph: Graph) -> None:
    """What torch records as a copy of an expanded tensor is one, since views further on count on its strides.

    Eager PyTorch refuses writes to expanded tensors, so that nobody can tell a copy by its memory.
    """
    for node in graph.nodes:
        if _returns_itself(node) or (node.target in _CASTS and "memory_format" not in node.kwargs):
            if _is_expanded(node.args[0].meta["val"]) and _differs_in_strides_alone(node, node.args[0]):
                node.target, node.args, node.kwargs = aten.clone.default, node.args[:1], {}


def _is_expanded(val: torch.Tensor) -> bool:
    strides = zip(val.stride(), val.shape, strict=True)
    return any(isinstance(s, int) and s == 0 and isinstance(d, int) and d > 1 for s, d in strides)


def _differs_in_strides_alone(node: Node, given: Node) -> bool:
    mine, other = node.meta["val"], given.meta["val"]
    same = mine.dtype is other.dtype and mine.device == other.device
    return same and list(map(str, mine.stride())) != list(map(str, other.stride()))


def _returns_itself(node: Node) -> bool:
    """Dropout in eval mode gives the very tensor that it was given."""
    return node.target in _DROPOUTS and node.args[2] is False


def _drop(graph: Graph, identity: Callable[[Node], bool]) -> None:
    """Let users of identities use their argument."""
    for node in [n for n in graph.nodes if identity(n)]:
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)


def _drop_dead(graph: Graph) -> None:
    """Remove calls that nobody uses; safe now that a write shows as a use."""
    for node in reversed(graph.nodes):
        if node.op in ("call_function", "get_attr") and not node.users and not node.is_impure():
            graph.erase_node(node)


def _refresh(outputs: list[OutputSpec], graph: Graph) -> None:
    """Let every output spec name the node that the graph returns at its place."""
    values: Any = output_node(graph).args[0]
    for k, value in enumerate(values):
        outputs[k] = OutputSpec(outputs[k].kind, argument_of(value), outputs[k].target)
