"""Changes the inputs and outputs of programs: integers for floats, channels last.

Also finds the quantization of inputs and outputs. The borders of a program are its
inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from delegraph.errors import InputError, Unsupported
from delegraph.formats import QuantizationParameters
from delegraph_programs import (
    argument_of,
    build_program,
    output_node,
    output_values,
    root_call,
    user_inputs,
)
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind, OutputSpec
from torch.fx import Node

from .ir.graph import Graph
from .serialize.trailer import trailer

__all__ = ["channels_last_borders", "integer_borders", "quantization_of"]

aten = torch.ops.aten
DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor.default"
QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"
"""Given by name: torch has these operators only after a module defines them."""


def integer_borders(program: ExportedProgram) -> ExportedProgram:
    """Make a quantized program take and return integers.

    Removes the quantize calls of its inputs and the dequantize calls of its results. A
    value stays a float if it is not quantized, or quantized in several ways. Raises
    Unsupported if no input or result can change.

    A transform for ``delegraph.lower``. It changes ``program`` in place.
    """
    changed_inputs = [
        node for node in user_inputs(program) if _change_to_integers(node)
    ]
    values: Any = output_node(program.graph).args[0]
    pairs = list(zip(program.graph_signature.output_specs, values, strict=True))
    kept = [
        value.args[0] if _is_dequantized(spec, value) else value
        for spec, value in pairs
    ]
    if not changed_inputs and kept == list(values):
        text = (
            "integer_borders: the program quantizes none of its inputs and dequantizes"
            " none of its results"
        )
        raise Unsupported(
            "unsupported",
            text,
            hint="quantize the model first: delegraph.quantize, or --quantize FILE",
        )
    return _with_results(program, kept)


def _with_results(program: ExportedProgram, values: Sequence[Any]) -> ExportedProgram:
    """Return the program with other results, given in the order of its signature."""
    output_node(program.graph).args = (tuple(values),)
    program.graph.eliminate_dead_code()
    signature = program.graph_signature
    pairs = zip(signature.output_specs, values, strict=True)
    specs = [
        OutputSpec(spec.kind, argument_of(value), spec.target) for spec, value in pairs
    ]
    return build_program(
        program.graph_module,
        program.graph,
        signature.input_specs,
        specs,
        program,
        root_call(program),
    )


def _change_to_integers(node: Node) -> bool:
    """Make a placeholder an integer input if all users quantize it in the same way.

    Returns whether it was changed.
    """
    users = list(node.users)
    if not users or any(
        str(u.target) != QUANTIZE or u.args[1:] != users[0].args[1:] for u in users
    ):
        return False
    node.meta["val"] = users[0].meta["val"]
    for user in users:
        user.replace_all_uses_with(node)
        user.graph.erase_node(user)
    return True


def _is_dequantized(spec: OutputSpec, value: Any) -> bool:
    """Return whether an output that the user gets is dequantized."""
    return (
        spec.kind is OutputKind.USER_OUTPUT
        and isinstance(value, Node)
        and str(value.target) == DEQUANTIZE
    )


def channels_last_borders(
    program: ExportedProgram,
    *,
    inputs: Collection[str] | None = None,
    outputs: Collection[int] | None = None,
) -> ExportedProgram:
    """Make a program take and return images as [N, H, W, C] instead of [N, C, H, W].

    A transform for ``delegraph.lower``. It changes ``program`` in place and works
    before or after ``integer_borders``.

    ``inputs`` are names and ``outputs`` positions of tensors of rank 3 or more. Pass
    them with ``functools.partial``. By default, all tensors of rank 4 and 5 change. A
    mutated input that changes is also written with its channels last.

    Raises InputError for an unknown name or position and for a rank below 3. Raises
    Unsupported if no tensor can change.
    """
    signature = program.graph_signature
    inputs_by_name = {node.name: node for node in user_inputs(program)}
    specs = signature.output_specs
    returned = [
        k for k, spec in enumerate(specs) if spec.kind is OutputKind.USER_OUTPUT
    ]
    values = output_values(program)
    results = {position: values[k] for position, k in enumerate(returned)}
    names = _chosen("input", inputs_by_name, inputs)
    moved = {returned[position] for position in _chosen("output", results, outputs)}
    if not names and not moved:
        text = (
            "channels_last_borders: the program takes and returns no tensor of rank 4"
            " or 5"
        )
        raise Unsupported("unsupported", text)
    moved |= {
        k
        for k, spec in enumerate(specs)
        if spec.kind is OutputKind.USER_INPUT_MUTATION and spec.target in names
    }
    for name in names:
        _take_channels_last(inputs_by_name[name])
    # read the outputs again: a returned input is now the permuted value, with its
    # channels first
    kept = [
        _with_channels_last(value) if k in moved else value
        for k, value in enumerate(output_values(program))
    ]
    return _with_results(program, kept)


def _chosen(
    side: str, values: Mapping[Any, Any], keys: Collection[Any] | None
) -> list[Any]:
    """Return the inputs or outputs to change: ``keys``, or all of rank 4 and 5.

    Other ranks have no channels-last format in torch.
    """
    ranks: dict[Any, int] = {}
    for key, value in values.items():
        val = value.meta.get("val") if isinstance(value, Node) else None
        ranks[key] = val.dim() if isinstance(val, torch.Tensor) else 0
    if keys is None:
        return [key for key, rank in ranks.items() if rank in (4, 5)]
    if isinstance(keys, str) or not isinstance(keys, Collection):
        raise InputError(
            "input-invalid",
            f"channels_last_borders: {side}s must be a list, such as [{keys!r}], not {keys!r}",
        )
    for key in keys:
        if ranks.get(key, 0) < 3:
            why = f"is none of the program's {side}s: {list(ranks)}"
            if key in ranks:
                why = f"has rank {ranks[key]}; only rank 3 and above has channels"
            raise InputError(
                "input-invalid", f"channels_last_borders: {side} {key!r} {why}"
            )
    return list(dict.fromkeys(keys))


def _take_channels_last(node: Node) -> None:
    """Give an input its channels last, and permute it back for its users.

    If all users quantize or dequantize it, they stay next to it and the permutation
    follows them. ``integer_borders`` and ``quantization_of`` look for them there.
    """
    users = list(node.users)
    before = node.meta["val"]
    node.meta["val"] = before.new_empty(
        [before.shape[dim] for dim in _channels_last(before)]
    )
    if users and all(str(user.target) in (QUANTIZE, DEQUANTIZE) for user in users):
        for user in users:
            _take_channels_last(user)
        return
    rank = before.dim()
    following = node.next
    if node.op == "placeholder":
        following = next(n for n in node.graph.nodes if n.op != "placeholder")
    with node.graph.inserting_before(following):
        moved = _permuted(node, (0, rank - 1, *range(1, rank - 1)), before)
    for user in users:
        user.replace_input_with(node, moved)


def _with_channels_last(value: Node) -> Node:
    """Return a result with its channels last.

    If the result is quantized or dequantized, the permutation comes before that.
    """
    before = value.meta["val"]
    order = _channels_last(before)
    after = before.new_empty([before.shape[dim] for dim in order])
    if str(value.target) in (QUANTIZE, DEQUANTIZE):
        inner: Any = value.args[0]
        moved = _with_channels_last(inner)
        with value.graph.inserting_before(output_node(value.graph)):
            copy = value.graph.node_copy(
                value, lambda argument: moved if argument is inner else argument
            )
        copy.meta["val"] = after
        return copy
    with value.graph.inserting_before(output_node(value.graph)):
        return _permuted(value, order, after)


def _permuted(value: Node, order: Sequence[int], like: torch.Tensor) -> Node:
    """Permute the dimensions of ``value``, with the strides of ``like`` in memory."""
    moved = value.graph.call_function(aten.permute.default, (value, list(order)))
    moved.meta["val"] = value.meta["val"].permute(order)
    # compared as text, because comparing symbolic sizes would add guards
    if list(map(str, moved.meta["val"].stride())) != list(map(str, like.stride())):
        moved = value.graph.call_function(
            aten.clone.default, (moved,), {"memory_format": torch.contiguous_format}
        )
        moved.meta["val"] = like
    return moved


def _channels_last(val: torch.Tensor) -> list[int]:
    """Return the permutation from channels first to channels last: (0,2,3,1)."""
    return [0, *range(2, val.dim()), 1]


class BorderQuantization(NamedTuple):
    """The quantization of a program's inputs, by name, and outputs, by position.

    Leaves out inputs that are dequantized in several ways.
    """

    inputs: dict[str, QuantizationParameters]
    outputs: dict[int, QuantizationParameters]

    def facts(self) -> dict[str, str]:
        """Return the quantization as text, for the report."""
        found = {
            f"input {name}": parameters for name, parameters in self.inputs.items()
        }
        for position, parameters in self.outputs.items():
            found[f"output {position}"] = parameters
        return {border: str(parameters) for border, parameters in found.items()}

    def trailer(self, graph: Graph) -> bytes:
        """Return the trailer for the program's file.

        The graph may order inputs differently.
        """
        inputs = [self.inputs.get(value.name or "") for value in graph.inputs]
        outputs = [self.outputs.get(position) for position in range(len(graph.outputs))]
        return trailer(inputs, outputs)


def quantization_of(program: ExportedProgram) -> BorderQuantization:
    """Find the quantization of a program's inputs and outputs."""
    inputs = {}
    for node in user_inputs(program):
        found = {_parameters(u) for u in node.users if str(u.target) == DEQUANTIZE}
        if len(found) == 1:
            inputs[node.name] = found.pop()
    returned: Any = output_node(program.graph).args[0]
    outputs = {
        position: _parameters(value)
        for position, value in enumerate(returned)
        if isinstance(value, Node) and str(value.target) == QUANTIZE
    }
    return BorderQuantization(inputs, outputs)


def _parameters(call: Node) -> QuantizationParameters:
    """Return the parameters of a quantize or dequantize call."""
    _, scale, zero_point, _, _, dtype, *_ = call.args
    return QuantizationParameters(
        str(dtype).removeprefix("torch."),
        float(scale),  # type: ignore[arg-type]
        int(zero_point),  # type: ignore[arg-type]
    )
