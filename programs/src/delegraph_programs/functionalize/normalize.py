"""Makes the normalized copy of a program, the form that backends see.

The copy is functional: no call writes to a tensor. It has no wrappers that only switch
gradients on and off, and every call has a debug handle, a number for reports. The same
holds for the subgraphs of higher-order calls. The caller's program is never changed.
The graph is copied node by node, because a retrace takes longer than the export did.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import chain
from types import MappingProxyType
from typing import Any

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node

from ..call_names import EXPORTED, LEFT
from ..errors import InputError
from ..exported_program import (
    CALL_DELEGATE,
    CONSTANT_KINDS,
    MUTATIONS,
    build_program,
    constant_tensor,
    copy_node,
    erase_unused,
    name_outputs,
    output_node,
    root_call,
)
from ..higher_order_subgraphs import next_handles, rewrite_subgraphs, subgraphs_of
from ..interpolation_scale_factors import use_factors_of_eager
from ..memory_overlap import overlapping, share_memory
from ..operator_schema import overloads
from ..reachable_nodes import reachable
from ..source_line import source_of
from ..symbolic_sizes import are_static, comparable
from ..tensor_subclasses import unwrap_subclasses
from .aliases import have_common_storage
from .operator_effects import aliased_arguments
from .retrace_with_torch import HINT_FAILED, check_retraced, retrace
from .writes import Mutations, Reason, functionalize

aten = torch.ops.aten
_GRADIENT_WRAPPER = torch.ops.higher_order.wrap_with_set_grad_enabled
_AUTOCAST = torch.ops.higher_order.wrap_with_autocast
_VMAP = "torch._functorch.predispatch"
"""Module of the calls that begin and end a ``vmap``, which acts on all calls between.
"""
_DROPPED = frozenset({aten._assert_tensor_metadata.default})
"""Assertions about types, which an exported program fixes anyway."""
_IDENTITIES = overloads("lift_fresh_copy.default detach.default alias.default")
"""Calls that return their argument, once nothing is written in place."""
_DROPOUTS = overloads(
    "dropout.default dropout_.default feature_dropout.default feature_dropout_.default"
    " alpha_dropout.default alpha_dropout_.default feature_alpha_dropout.default"
    " feature_alpha_dropout_.default"
)
_QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"
"""An operator by its name, because torch has it only after torchao is imported."""
_CASTS = overloads("to.dtype to.device to.dtype_layout")


def normalize(program: ExportedProgram) -> tuple[ExportedProgram, list[str]]:
    """Return the normalized copy of ``program``, and notes for the report.

    Raises InputError if the program cannot be made functional.
    """
    program = unwrap_subclasses(program)
    normal, unproven = _functional_copy(program, next_handles(program.graph_module))
    if not unproven:
        return normal, []
    # the slow fallback, for programs that the copy cannot make functional
    retraced = retrace(program, unproven[0])
    normal, still_unproven = _functional_copy(
        retraced, next_handles(retraced.graph_module)
    )
    if still_unproven:
        text = f"the program cannot be made functional: {still_unproven[0].text}"
        raise InputError(
            "input-invalid", text, source=still_unproven[0].source, hint=HINT_FAILED
        )
    for node in normal.graph.nodes:
        node.meta.pop(EXPORTED, None)  # torch gave the nodes new names
    doubt = check_retraced(program, normal, unproven[0])
    notes = [f"retraced, because of {reason}" for reason in unproven]
    if doubt:
        notes.append(f"the retraced program was not compared with eager: {doubt}")
    return normal, notes


def _functional_copy(
    program: ExportedProgram, handles: Iterator[int]
) -> tuple[ExportedProgram, list[Reason]]:
    """Return a functional copy of ``program`` and its subgraphs, and an empty list.

    If that is not possible, return a program that is not functional, and the reasons.
    ``handles`` yields debug handles for the calls.
    """
    graph = _UnwrappedCopy(program.graph_module).graph
    _record_expanded_copies(graph)
    _record_dtypes(graph)
    use_factors_of_eager(graph)
    # Before ``functionalize``: such a dropout returns its argument itself, so a write
    # to its result is a write to the argument.
    _replace_by_argument(graph, _is_inactive_dropout)
    obstacle = next(filter(None, map(_why_retrace, graph.nodes)), None)
    if obstacle:
        return program, [obstacle]
    inputs = graph.find_nodes(op="placeholder")
    specs = dict(zip(inputs, program.graph_signature.input_specs, strict=True))
    state = {n for n, s in specs.items() if s.kind in CONSTANT_KINDS}
    mutations = functionalize(graph, state)
    if mutations.unproven:
        return program, mutations.unproven
    _expect_state_apart(program, specs, mutations)
    for node in mutations.last_value:
        # The signature may call a written tensor a constant, as for a static cache of
        # transformers. Then torch refuses to decompose the program; a buffer may be
        # written.
        spec = specs[node]
        if spec.kind is InputKind.CONSTANT_TENSOR:
            specs[node] = InputSpec(
                InputKind.BUFFER, spec.arg, spec.target, persistent=False
            )
    outputs = _return_mutations(program, graph, specs, mutations)
    _copy_returned_literals(graph)
    # Only now is it safe to drop calls: before, one without users could be a write.
    _replace_by_argument(graph, lambda node: node.target in _IDENTITIES)
    erase_unused(graph)
    _read_sizes_off_integers(graph)
    outputs = name_outputs(outputs, output_node(graph).args[0])  # type: ignore[arg-type]
    number_calls(graph, handles, mutations.origin)
    copy = build_program(
        program.graph_module,
        graph,
        list(specs.values()),
        outputs,
        program,
        root_call(program),
        # torch validated the export, and validates decomposed and lowered programs
        check=False,
    )
    return copy, _normalize_subgraphs(copy, handles)


def _expect_state_apart(
    program: ExportedProgram, specs: Mapping[Node, InputSpec], mutations: Mutations
) -> None:
    """Raise InputError if a write to a buffer would not reach a tensor that shares it.

    If the recorded values of the two share a storage, ``functionalize`` has followed
    the write. In a program that was loaded from a file, the tensors may share memory,
    but the recorded values do not.
    """
    tensors = {
        n: constant_tensor(program, s)
        for n, s in specs.items()
        if s.kind in CONSTANT_KINDS
    }
    changed = mutations.last_value.keys() & tensors.keys()
    if not changed:
        return
    for pair in overlapping(tensors):
        for written, node in (pair, pair[::-1]):
            if written not in changed or not node.users:
                continue
            is_recorded = have_common_storage(node.meta["val"], written.meta["val"])
            if is_recorded or not share_memory(tensors[written], tensors[node]):
                continue
            written_name = specs[written].target
            other_name = specs[node].target
            text = (
                f"{written_name} and {other_name} share memory, and the program writes"
                f" {written_name}"
            )
            hint = (
                f"let forward take {other_name} from {written_name}, or give it memory"
                " of its own (clone())"
            )
            raise InputError("input-invalid", text, hint=hint)


def _normalize_subgraphs(
    program: ExportedProgram, handles: Iterator[int]
) -> list[Reason]:
    """Replace the subgraphs of ``program`` by functional copies; return obstacles.

    A subgraph that writes to its inputs cannot be made functional. ``handles`` yields
    debug handles for the calls.
    """
    unproven: list[Reason] = []

    def normalize_subgraph(subgraph: ExportedProgram) -> ExportedProgram:
        """Return a functional copy of ``subgraph``, or add reasons to ``unproven``.

        After a failure, subgraphs are returned unchanged, since the whole program is
        retraced.
        """
        copy, reasons = _functional_copy(subgraph, handles)
        unproven.extend(
            Reason(f"{reason.text} (inside a branch)", reason.source)
            for reason in reasons
        )
        if any(s.kind in MUTATIONS for s in copy.graph_signature.output_specs):
            unproven.append(
                Reason("a branch writes to a tensor that was made outside of it")
            )
        return subgraph if unproven else copy

    rewrite_subgraphs(program, normalize_subgraph)
    return unproven


def number_calls(
    graph: Graph,
    handles: Iterator[int],
    origin: Mapping[Node, Node] = MappingProxyType({}),
) -> None:
    """Give every call without a debug handle the next one of ``handles``, in graph
    order.

    ``origin``: added call -> the call that it was added for. Both get the same handle.
    """
    for node in (n for n in graph.nodes if n.op == "call_function"):
        numbered = origin.get(node, node)
        if "debug_handle" not in numbered.meta:
            numbered.meta["debug_handle"] = next(handles)
        node.meta["debug_handle"] = numbered.meta["debug_handle"]
        # the node that fetches the delegate is a part of its call
        if node.target is CALL_DELEGATE:
            node.args[0].meta["debug_handle"] = node.meta["debug_handle"]


class _UnwrappedCopy:
    """A copy of a graph without wrappers that switch gradients on or off.

    The calls inside of a wrapper become calls of the copy. ``_copies``: node -> its
    replacement.
    """

    def __init__(self, module: GraphModule) -> None:
        """Copy the graph of ``module`` into ``graph``."""
        self.graph = Graph(owning_module=module)
        self._copies: dict[Node, Any] = {}
        self._copy_graph(module)

    def _copy_graph(self, module: GraphModule) -> Any:
        """Copy the nodes of ``module``; return the copies of its results."""
        for node in module.graph.nodes:
            self._copies[node] = self._copy(node, module)
        return self._copies[output_node(module.graph)]

    def _copy(self, node: Node, module: GraphModule) -> Any:
        """Copy ``node`` of the graph of ``module``; return its replacement.

        Usually the replacement is a node. For a wrapper, and for the output of the
        wrapped graph, it is a tuple of results. It is None for a node that is left out.
        """
        if node.target is _GRADIENT_WRAPPER:
            return self._inline(node, module)
        if node.target is operator.getitem:
            operand: Any = node.args[0]
            position: Any = node.args[1]
            results = self._copies[operand]
            if isinstance(results, tuple):  # of a wrapper
                return results[position]
        if node.target in _DROPPED:
            return None
        if node.op == "get_attr" and all(
            u.target is _GRADIENT_WRAPPER for u in node.users
        ):
            return None  # it fetches a graph that is inlined
        # an input of a wrapper that is being inlined
        if node.op == "placeholder" and node in self._copies:
            return self._copies[node]
        if node.op == "output" and module is not self.graph.owning_module:
            return torch.fx.map_arg(node.args[0], lambda n: self._copies[n])
        copy = copy_node(self.graph, node, lambda n: self._copies[n])
        # left by an earlier lowering, if ``program`` is its result
        for key in ("delegation_tag", LEFT):
            copy.meta.pop(key, None)
        copy.meta[EXPORTED] = node.name
        return copy

    def _inline(self, wrapper: Node, module: GraphModule) -> tuple[Any, ...]:
        """Copy the graph that ``wrapper`` wraps; return the copies of its results.

        The arguments of ``wrapper`` are whether gradients are on, the node that fetches
        the graph, and its inputs.
        """
        fetching: Any = wrapper.args[1]
        inner: Any = getattr(module, fetching.target)
        placeholders = [n for n in inner.graph.nodes if n.op == "placeholder"]
        operands = torch.fx.map_arg(wrapper.args[2:], lambda n: self._copies[n])
        self._copies.update(zip(placeholders, operands, strict=True))
        return tuple(self._copy_graph(inner))


def _return_mutations(
    program: ExportedProgram,
    graph: Graph,
    specs: Mapping[Node, InputSpec],
    mutations: Mutations,
) -> list[OutputSpec]:
    """Let ``graph`` return the last values of the placeholders that it writes.

    Returns the specs of all outputs. torch requires this order: first the mutations
    that ``program`` already returned, then the new ones, then the user's results.
    ``specs``: placeholder -> its spec.
    """
    old = program.graph_signature.output_specs
    old_count = sum(s.kind in MUTATIONS for s in old)
    written = [n for n in specs if n in mutations.last_value]
    new = [_mutation(specs[n], n, mutations.last_value[n]) for n in written]
    output = output_node(graph)
    values: Any = output.args[0]
    new_values = [mutations.last_value[n] for n in written]
    output.args = ((*values[:old_count], *new_values, *values[old_count:]),)
    return [*old[:old_count], *new, *old[old_count:]]


def _mutation(spec: InputSpec, node: Node, value: Node) -> OutputSpec:
    """Return the output spec for ``value``, the new value of the placeholder ``node``.

    ``spec``: the input spec of ``node``.
    """
    kinds = {
        InputKind.BUFFER: OutputKind.BUFFER_MUTATION,
        InputKind.PARAMETER: OutputKind.PARAMETER_MUTATION,
    }
    kind = kinds.get(spec.kind, OutputKind.USER_INPUT_MUTATION)
    target = node.name if kind is OutputKind.USER_INPUT_MUTATION else spec.target
    return OutputSpec(kind, TensorArgument(value.name), target)


def _why_retrace(node: Node) -> Reason | None:
    """Return why ``node`` requires a retrace of the program, or None.

    Autocast and ``vmap`` do: they change the meaning of other calls, which the graph
    does not show.
    """
    if node.target is _AUTOCAST:
        # torch records no source for the wrapper itself
        wrapped = chain.from_iterable(sub.graph.nodes for sub in subgraphs_of(node))
        source = next(filter(None, map(source_of, wrapped)), None)
        text = "wrap_with_autocast: the graph does not show its casts"
        return Reason(text, source)
    if node.op == "call_function" and getattr(node.target, "__module__", "") == _VMAP:
        text = "vmap: the graph does not show the dimension that it maps over"
        return Reason(text, source_of(node))
    return None


def _record_expanded_copies(graph: Graph) -> None:
    """Turn casts and dropouts of expanded tensors into clones if torch recorded a copy.

    In eager, a call without effect (a cast to the same type, a dropout outside of
    training) returns its argument. Here that is an expanded tensor, and its elements
    share memory. But torch recorded the strides of a dense copy, and chose later views
    by them. A clone has these strides. It is equivalent, since eager refuses writes to
    expanded tensors.
    """
    for node in graph.nodes:
        is_cast = node.target in _CASTS and "memory_format" not in node.kwargs
        if not is_cast and not _is_inactive_dropout(node):
            continue
        source = node.args[0].meta["val"]
        val = node.meta["val"]
        does_nothing = val.dtype is source.dtype and val.device == source.device
        other_strides = comparable(val.stride()) != comparable(source.stride())
        if does_nothing and other_strides and _is_expanded(source):
            node.target = aten.clone.default
            node.args = node.args[:1]
            node.kwargs = {}


def _is_expanded(val: torch.Tensor) -> bool:
    """Return whether a dimension of several elements has stride 0.

    Symbolic sizes and strides do not count.
    """
    dimensions = zip(val.shape, val.stride(), strict=True)
    return any(
        are_static((size, stride)) and size > 1 and stride == 0
        for size, stride in dimensions
    )


def _record_dtypes(graph: Graph) -> None:
    """Write the recorded dtype into calls that create tensors without a ``dtype``.

    Otherwise it would depend on torch's default dtype when the program runs.
    """
    for node in graph.nodes:
        if (
            isinstance(node.target, OpOverload)
            and _may_infer_dtype(node.target)
            and node.kwargs.get("dtype") is None
        ):
            node.update_kwarg("dtype", node.meta["val"].dtype)


@cache
def _may_infer_dtype(op: OpOverload) -> bool:
    """Return whether ``op`` takes a keyword ``dtype`` and no tensor that determines it.

    Only operators of ATen count: those of other libraries may give ``dtype`` another
    meaning, or return several tensors.
    """
    arguments = op._schema.arguments
    if op.namespace != "aten" or any("Tensor" in str(a.type) for a in arguments):
        return False
    return any(a.name == "dtype" and a.kwarg_only for a in arguments)


def _read_sizes_off_integers(graph: Graph) -> None:
    """Let calls read the sizes of a quantized float input from its integers.

    Both have the same shape. A delegate that computes with integers then gets no float
    input.
    """
    for size in graph.find_nodes(op="call_function", target=aten.sym_size.int):
        tensor, axis = size.args
        integers = next((n for n in tensor.users if str(n.target) == _QUANTIZE), None)
        if tensor.op == "placeholder" and integers is not None:
            # the quantized input must come before the call that reads its size
            if size < integers:
                size.prepend(integers)
            size.args = (integers, axis)


def _copy_returned_literals(graph: Graph) -> None:
    """Copy literals that the graph returns, or returns views of.

    A literal is a tensor that the user's code makes from numbers. A caller may write to
    a result, which must not change the literal for the next call.
    """
    for node in reachable(output_node(graph).all_input_nodes, aliased_arguments):
        if node.target is aten.lift_fresh_copy.default:
            node.target = aten.clone.default


def _is_inactive_dropout(node: Node) -> bool:
    """Return whether the call is a dropout outside of training."""
    # the arguments of all dropouts are input, p and train
    return node.target in _DROPOUTS and node.args[2] is False


def _replace_by_argument(graph: Graph, is_identity: Callable[[Node], bool]) -> None:
    """Replace each node that ``is_identity`` accepts by its argument."""
    for node in [n for n in graph.nodes if is_identity(n)]:
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
